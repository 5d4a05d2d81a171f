// Rows that travel between ranks, on the cpu. Contracts: kernels/ops/moe_exchange.h.
#pragma once

#include "kernels/ops/moe_exchange.h"

namespace olmo::cpu {

void expert_counts(const ops::ExpertCountsArgs& args, void* workspace, Stream& stream);
void exchange_plan(const ops::ExchangePlanArgs& args, void* workspace, Stream& stream);
void place_routes(const ops::PlaceRoutesArgs& args, void* workspace, Stream& stream);
void send_rows(const ops::SendRowsArgs& args, void* workspace, Stream& stream);
void collect_rows(const ops::CollectRowsArgs& args, void* workspace, Stream& stream);
void return_rows(const ops::ReturnRowsArgs& args, void* workspace, Stream& stream);

}  // namespace olmo::cpu
