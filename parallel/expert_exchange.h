// ExpertExchange: moves rows of tokens to the ranks that have their experts, and back.
//
// One exchange serves every block of a rank. What it keeps between forward and backward of one block and micro-batch is
// in an ExchangeState, the caller's. There are two paths, which differ in who knows the counts:
//
//   sync     every rank's counts reach the host; messages have exactly the rows that travel; nothing is dropped.
//   rowwise  counts stay on the device. Every message has a fixed size, whatever the routing, and a rank takes
//            `capacity` rows at most, the rest being dropped by the rule of ops::exchange_plan.
//
// Local experts are cut into waves: the rows of the next waves travel while one is computed.
//
// Order of calls, forward:  start, plan, open, dispatch, for each wave {collect, give_back}, combine;
//                 backward: open, dispatch_gradients, for each wave {collect, give_back}, sum_gradients.
// Every rank of the group makes them in the same order. Calls of two states may be interleaved.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/stream.h"
#include "parallel/communicator.h"

namespace olmo {

enum class ExpertPath : uint8_t { sync, rowwise };

struct ExchangeSettings {
  int64_t experts = 1;  // of all ranks together
  int64_t top_k = 1;
  ExpertPath path = ExpertPath::sync;
  double capacity_factor = 1.25;  // rowwise: rows that a rank takes, in terms of those that it sends
  int64_t waves = 1;              // divides the experts of a rank
};

// What is known of one micro-batch's routes in one block. Tensors live in the arenas given to start, plan and open.
struct ExchangeState {
  Tensor indices, row_of_route;                // i32 [N, K]
  Tensor offsets_sent;                         // i32 [E+1]
  Tensor counts;                               // i32 [R, E]
  Tensor send_first, sent;                     // i32 [E]
  Tensor first, expert_first, taken, offsets;  // i32 [L, R], [L+1]
  bool exact = true;                           // messages have as many rows as travel
  int64_t capacity = 0, message_rows = 0;
  int64_t expert_rows = 0;            // rows that tensors in expert order need
  int64_t send_rows = 0, others = 0;  // rows of the buffers
  std::vector<int64_t> wave_rows;     // in expert order, as far as the host knows
  std::vector<RowSplit> to, from;     // by wave
  std::vector<Pending> travelling;    // by wave
  Pending counted;
  Tensor returned;        // f32 [N * K, d]: what came back, kept for the gradient of the weights
  Tensor send, received;  // the buffers, between open and the last call
};

class ExpertExchange {
 public:
  // The group outlives the exchange. Throws std::logic_error when experts do not divide by ranks and waves.
  ExpertExchange(Communicator& group, const ExchangeSettings& settings);

  int64_t local_experts() const { return local_; }
  int64_t waves() const { return settings_.waves; }

  // Sorts the routes `indices` i32 [N, K] by expert and sends their counts to all ranks. `dropless`: sync, whatever the
  // settings. Rowwise needs the same N on all ranks. `indices` is kept until the last call of backward.
  void start(ExchangeState& state, const Tensor& indices, bool dropless, Arena& arena, Stream& stream) const;

  // Waits for the counts and decides what travels: rows of `width` elements. After it state.expert_rows is known. drops
  // and most: as in ops::exchange_plan, rowwise only.
  void plan(ExchangeState& state, int64_t width, DType dtype, const Tensor& drops, const Tensor& most, Arena& arena,
            Stream& stream) const;

  // Takes the buffers of a way there and back from the arena: they must stay until combine or sum_gradients.
  void open(ExchangeState& state, Arena& arena) const;

  // Rows of x [N, d] set out to their experts.
  void dispatch(ExchangeState& state, const Tensor& x, Stream& stream) const;
  // Gradients of the experts' outputs set out: weights[n, k] * dy[n] for y as combine makes it. dweights f32 [N, K]
  // becomes <dy[n], returned row>, 0 for dropped routes.
  void dispatch_gradients(ExchangeState& state, const Tensor& dy, const Tensor& weights, const Tensor& dweights,
                          Stream& stream) const;

  // One wave's experts, and where their rows lie in expert order.
  struct Wave {
    int64_t first_expert = 0, experts = 0;  // local
    Tensor offsets;                         // i32 [experts + 1]
    Tensor begin, end;                      // i32 [1]: rows of the wave
    int64_t expected_rows = 0;              // exact on the sync path
  };
  Wave wave(const ExchangeState& state, int64_t index) const;

  // Waits for the wave and puts its rows into by_expert [expert_rows, d].
  void collect(ExchangeState& state, int64_t wave, const Tensor& by_expert, Stream& stream) const;
  // Sends the wave's rows of by_expert back to where they came from.
  void give_back(ExchangeState& state, int64_t wave, const Tensor& by_expert, Stream& stream) const;

  // Waits for what was given back: y[n] = [addend[n] +] sum over k ascending of weights[n, k] * row, without dropped
  // routes. The addend may be y.
  void combine(ExchangeState& state, const Tensor& weights, const Tensor& addend, const Tensor& y,
               Stream& stream) const;
  // The same for gradients: dx[n] (+)= sum over k ascending of the rows.
  void sum_gradients(ExchangeState& state, const Tensor& dx, bool accumulate, Stream& stream) const;

 private:
  void measure_exact(ExchangeState& state, Stream& stream) const;
  void measure_fixed(ExchangeState& state) const;
  void read_counts(const ExchangeState& state, Stream& stream) const;
  void set_out(ExchangeState& state, Stream& stream) const;
  void arrive(ExchangeState& state, Stream& stream) const;

  Communicator& group_;
  ExchangeSettings settings_;
  int64_t ranks_, rank_, local_, wave_experts_;
  mutable std::vector<int64_t> host_counts_;  // [R, E]
};

}  // namespace olmo
