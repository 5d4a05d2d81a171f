// From the second step on our code allocates nothing. Every malloc of the process is seen; one whose innermost caller,
// leaving out the C and C++ libraries, is oneDNN or libgomp is counted apart.
#include <dlfcn.h>
#include <execinfo.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "data/loader.h"
#include "tests/catch.h"
#include "tests/train/fixture.h"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> ours{0}, of_libraries{0}, library_bytes{0};
std::atomic<void*> first_of_ours{nullptr};
thread_local bool inside = false;

bool contains(const char* text, const char* part) {
  return text != nullptr && std::strstr(text, part) != nullptr;
}

// Who called: walks up from the frame of `caller` past the C and C++ libraries.
void attribute(void* caller, size_t bytes) {
  void* frames[32];
  const int n = backtrace(frames, 32);
  int i = 0;
  while (i < n && frames[i] != caller) ++i;
  for (; i < n; ++i) {
    Dl_info info;
    if (dladdr(frames[i], &info) == 0) continue;  // generated code of oneDNN has no file; it never allocates
    const char* file = info.dli_fname;
    if (contains(file, "libc.so") || contains(file, "libstdc++") || contains(file, "ld-linux")) continue;
    if (contains(file, "libdnnl") || contains(file, "libgomp")) {
      of_libraries += 1;
      library_bytes += static_cast<int64_t>(bytes);
      return;
    }
    break;
  }
  ours += 1;
  void* none = nullptr;
  first_of_ours.compare_exchange_strong(none, i < n ? frames[i] : caller);
}

void seen(void* caller, size_t bytes) {
  if (!counting || inside) return;
  inside = true;
  attribute(caller, bytes);
  inside = false;
}

}  // namespace

extern "C" {
void* malloc(size_t n) {
  seen(__builtin_return_address(0), n);
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  seen(__builtin_return_address(0), n * size);
  return __libc_calloc(n, size);
}
void* realloc(void* old, size_t n) {
  seen(__builtin_return_address(0), n);
  return __libc_realloc(old, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  seen(__builtin_return_address(0), n);
  return __libc_memalign(alignment, n);
}
void* memalign(size_t alignment, size_t n) {
  seen(__builtin_return_address(0), n);
  return __libc_memalign(alignment, n);
}
int posix_memalign(void** out, size_t alignment, size_t n) {
  seen(__builtin_return_address(0), n);
  *out = __libc_memalign(alignment, n);
  return *out == nullptr ? ENOMEM : 0;
}
void free(void* p) {
  __libc_free(p);
}
}

using namespace olmo;
using namespace olmo::test;

namespace {

struct Counts {
  int64_t ours = 0, libraries = 0, library_bytes = 0;
  void* first = nullptr;
};

template <class Function>
Counts count(Function function) {
  void* frames[4];
  backtrace(frames, 4);  // loads what it needs
  ours = of_libraries = library_bytes = 0;
  first_of_ours = nullptr;
  counting = true;
  function();
  counting = false;
  return {ours, of_libraries, library_bytes, first_of_ours};
}

// Where an unwelcome allocation came from.
std::string place(void* address) {
  Dl_info info;
  if (address == nullptr || dladdr(address, &info) == 0) return "nowhere";
  return std::string(info.dli_sname != nullptr ? info.dli_sname : "?") + " in " + info.dli_fname;
}

void check_steps(const RunConfig& c, int threads) {
  Trainer t(c, threads);
  std::vector<Batch> batches;
  for (int64_t step = 1; step <= 5; ++step) batches.push_back(make_batch(c, step));
  t.step.run(batches[0], 1e-3);
  const Counts counts = count([&] {
    for (size_t i = 1; i <= 3; ++i) t.step.run(batches[i], 1e-3);
  });
  INFO("first: " << place(counts.first));
  CHECK(counts.ours == 0);
  std::printf("oneDNN and libgomp in 3 steps of %lld micro-batches, %d threads: %lld allocations, %lld bytes\n",
              static_cast<long long>(c.batch.rows / c.batch.micro_rows), threads,
              static_cast<long long>(counts.libraries), static_cast<long long>(counts.library_bytes));
}

}  // namespace

TEST_CASE("the counter sees allocations") {
  CHECK(count([] { std::free(std::malloc(10)); }).ours == 1);
  CHECK(count([] { std::vector<int> v(10, 1); }).ours == 1);
  CHECK(count([] { std::string s(100, 'x'); }).ours == 1);
  CHECK(count([] {}).ours == 0);
}

TEST_CASE("a step allocates nothing") {
  RunConfig c = small_config();
  SECTION("plain") {
    check_steps(c, 1);
  }
  SECTION("sizes whose description is a long string") {
    c.data.sequence_length = 128;
    c.model.vocab_size = 1100;
    check_steps(c, 2);
  }
  SECTION("two threads, micro-batches, everything on") {
    c.model.n_layers = 3;
    c.model.window.pattern = {4};
    c.model.moe.bias_gamma = 1e-3;
    c.model.moe.gating = GatingKind::sigmoid;
    c.model.moe.granularity = BalanceGranularity::instance;
    c.data.document_mask = true;
    c.batch.micro_rows = 2;
    c.optim.skip_sigma = 6;
    c.optim.skip_window = 4;
    check_steps(c, 2);
  }
  SECTION("random routing, tied embeddings") {
    c.model.moe.routing = RoutingKind::random;
    c.model.tied_embeddings = true;
    c.model.norm = NormPlacement::reordered;
    check_steps(c, 2);
  }
}

TEST_CASE("evaluating a batch allocates nothing") {
  const RunConfig c = small_config();
  Trainer t(c);
  const Batch batch = make_batch(c, 1);
  EvalResult sums;
  t.step.evaluate(batch, sums);
  const Counts counts = count([&] { t.step.evaluate(batch, sums); });
  INFO("first: " << place(counts.first));
  CHECK(counts.ours == 0);
}

TEST_CASE("the loader allocates nothing once its buffers are in use") {
  namespace fs = std::filesystem;
  const std::string path = (fs::temp_directory_path() / ("olmotrain-allocations-" + std::to_string(getpid()))).string();
  {
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 16 * 64; ++i) file.put(static_cast<char>(i % 96));
  }
  LoaderSettings s;
  s.files = {path};
  s.dtype = "uint8";
  s.sequence_length = 16;
  s.vocab_size = 96;
  s.rows_of_step = [](int64_t) { return 8; };
  {
    DataLoader loader(s, 1, {});
    for (int i = 0; i < 12; ++i) loader.next();  // past the first epoch of 8 steps
    const Counts counts = count([&] {
      for (int i = 0; i < 20; ++i) loader.next();
    });
    INFO("first: " << place(counts.first));
    CHECK(counts.ours == 0);
  }
  fs::remove(path);
}
