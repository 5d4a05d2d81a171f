#include "kernels/stream.h"

namespace olmo {

Stream::Stream(Device device, int64_t scratch_capacity)
    : device_(device), scratch_("operator scratch", device.kind, scratch_capacity) {}

}  // namespace olmo
