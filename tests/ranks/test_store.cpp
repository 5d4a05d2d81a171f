// Reduction, sharded optimizer and FSDP on real ranks, against one rank in double precision and against each other.
#include <cstdlib>
#include <functional>
#include <limits>

#include "tests/ranks/store_run.h"

using namespace olmo;
using test::kUnits;
using test::Options;
using test::Ranks;
using test::Reference;
using test::StoreRun;

namespace {

enum class Way { replicated, sharded, fsdp };
constexpr Way kWays[] = {Way::replicated, Way::sharded, Way::fsdp};

Options options_of(Way way, int64_t micro_batches = 2) {
  Options o;
  o.settings.bucket_bytes = 64 << 10;
  o.settings.shard_optimizer = way != Way::replicated;
  o.settings.fsdp = way == Way::fsdp;
  o.micro_batches = micro_batches;
  return o;
}

// EP degrees that this number of ranks allows and the way knows.
std::vector<int64_t> ep_degrees(Way way) {
  const int64_t world = Launch::get().world();
  std::vector<int64_t> degrees = {1};
  if (way == Way::fsdp) return degrees;
  if (world % 2 == 0) degrees.push_back(2);
  if (world == 4) degrees.push_back(4);
  return degrees;
}

// The largest difference from the reference, relative to 1.
double worst(StoreRun& run, const Reference& reference, bool gradients) {
  double worst = 0;
  for (int64_t i = 0; i < run.parameters(); ++i) {
    const ParamShape& p = run.store()[i].info;
    const std::vector<float> got = gradients ? run.whole_gradient(i) : run.whole_value(i);
    for (int64_t e = 0; e < p.elements(); ++e) {
      const double want = gradients ? reference.gradient_of(p, i, e) : reference.value(p, i, e);
      worst = std::max(worst, std::abs(got[static_cast<size_t>(e)] - want) / std::max(1.0, std::abs(want)));
    }
  }
  return worst;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Every whole parameter after some steps.
std::vector<float> values_after(Ranks& ranks, int64_t ep, const Options& options, int64_t steps) {
  StoreRun run(ranks, ep, options);
  for (int64_t step = 1; step <= steps; ++step) run.step(step);
  std::vector<float> all;
  for (int64_t i = 0; i < run.parameters(); ++i) {
    const std::vector<float> whole = run.whole_value(i);
    all.insert(all.end(), whole.begin(), whole.end());
  }
  return all;
}

}  // namespace

TEST_CASE("gradients are the sums over each parameter's group, and the norm counts each once") {
  for (Way way : kWays) {
    for (int64_t ep : ep_degrees(way)) {
      CAPTURE(static_cast<int>(way), ep);
      Ranks ranks(1, ep, 1 << 16);
      const Options options = options_of(way);
      StoreRun run(ranks, ep, options);
      Reference reference(ranks.launch.world(), ep, options);
      run.forward_backward(1);
      const double norm = reference.step(1);
      CHECK(worst(run, reference, true) < 3e-6);
      CHECK(run.update().grad_norm == Approx(norm).epsilon(1e-6));
    }
  }
}

TEST_CASE("several steps give the values that one rank gets") {
  for (Way way : kWays) {
    for (int64_t ep : ep_degrees(way)) {
      CAPTURE(static_cast<int>(way), ep);
      Ranks ranks(1, ep, 1 << 16);
      const Options options = options_of(way, 3);
      StoreRun run(ranks, ep, options);
      Reference reference(ranks.launch.world(), ep, options);
      for (int64_t step = 1; step <= 4; ++step) {
        const double norm = reference.step(step);
        CHECK(run.step(step).grad_norm == Approx(norm).epsilon(1e-5));
      }
      CHECK(worst(run, reference, false) < 1e-4);
    }
  }
}

TEST_CASE("a sharded optimizer gives the bits of the replicated one, and with one micro-batch so does fsdp") {
  for (int64_t ep : ep_degrees(Way::sharded)) {
    CAPTURE(ep);
    Ranks ranks(1, ep, 1 << 16);
    CHECK(same_bits(values_after(ranks, ep, options_of(Way::replicated), 5),
                    values_after(ranks, ep, options_of(Way::sharded), 5)));
  }
  Ranks ranks(1, 1, 1 << 16);
  CHECK(same_bits(values_after(ranks, 1, options_of(Way::sharded, 1), 5),
                  values_after(ranks, 1, options_of(Way::fsdp, 1), 5)));
}

TEST_CASE("neither the cut into buckets nor late ranks change a bit") {
  for (Way way : kWays) {
    CAPTURE(static_cast<int>(way));
    Ranks ranks(1, 1, 1 << 16);
    const std::vector<float> prompt = values_after(ranks, 1, options_of(way), 3);
    Options options = options_of(way);
    options.stagger_us = 4000;
    CHECK(same_bits(prompt, values_after(ranks, 1, options, 3)));
    options.stagger_us = 0;
    options.settings.bucket_bytes = 1;
    // The norm adds up by shards, whose cut moves with the buckets'; the clip is below its limit and stays out of it.
    options.optim.clip = 0;
    Options whole = options;
    whole.settings.bucket_bytes = int64_t{1} << 30;
    CHECK(same_bits(values_after(ranks, 1, options, 3), values_after(ranks, 1, whole, 3)));
  }
}

TEST_CASE("operations that take long change no bit") {
  for (Way way : kWays) {
    CAPTURE(static_cast<int>(way));
    std::vector<float> prompt;
    {
      Ranks ranks(1, 1, 1 << 16);
      prompt = values_after(ranks, 1, options_of(way), 2);
    }
    setenv("OLMOTRAIN_TEST_COMM_DELAY_MS", "5", 1);
    Ranks slow(1, 1, 1 << 16);
    unsetenv("OLMOTRAIN_TEST_COMM_DELAY_MS");
    CHECK(same_bits(prompt, values_after(slow, 1, options_of(way), 2)));
  }
}

TEST_CASE("a non-finite gradient of one rank changes nothing on any, and the rank that had it knows which") {
  for (Way way : kWays) {
    CAPTURE(static_cast<int>(way));
    Ranks ranks(1, 1, 1 << 16);
    StoreRun run(ranks, 1, options_of(way));
    run.step(1);
    const std::vector<float> before = run.state();
    const int64_t culprit = run.store().find("block2.experts");
    run.change = [&](int64_t param, int64_t micro_batch, const Tensor& grad) {
      if (ranks.launch.rank() == 1 && param == culprit && micro_batch == 1)
        grad.f32()[77] = std::numeric_limits<float>::quiet_NaN();
    };
    run.store().watch_gradients(true);
    CHECK(!run.step(2).finite);
    CHECK(same_bits(before, run.state()));
    CHECK(run.store().first_nonfinite().has_value() == (ranks.launch.rank() == 1));
    if (ranks.launch.rank() == 1) {
      CHECK(run.store().first_nonfinite()->param == culprit);
      CHECK(run.store().first_nonfinite()->element == 77);
      CHECK(run.store().first_nonfinite()->micro_batch == 2);
    }
    // A loss that is not finite does the same.
    run.change = nullptr;
    CHECK(!run.step(2, std::numeric_limits<double>::infinity()).finite);
    CHECK(same_bits(before, run.state()));
    CHECK(run.step(2).finite);
    CHECK(!same_bits(before, run.state()));
    CHECK(run.optimizer().updates() == 2);
  }
}

TEST_CASE("an outlier is skipped by all ranks, and the next step goes on from the same state") {
  for (Way way : kWays) {
    Ranks ranks(1, 1, 1 << 16);
    Options options = options_of(way);
    options.optim.skip_sigma = 3;
    options.optim.skip_window = 4;
    StoreRun run(ranks, 1, options);
    for (int64_t step = 1; step <= 4; ++step) CHECK(!run.step(step, 1 + 1e-3 * static_cast<double>(step % 2)).skipped);
    const std::vector<float> before = run.state();
    CHECK(run.step(5, 50).skipped);
    CHECK(same_bits(before, run.state()));
  }
}

TEST_CASE("without gradients exactly the decaying parameters shrink, idle experts among them") {
  for (Way way : kWays) {
    for (int64_t ep : ep_degrees(way)) {
      CAPTURE(static_cast<int>(way), ep);
      Ranks ranks(1, ep, 1 << 16);
      StoreRun run(ranks, ep, options_of(way));
      std::vector<std::vector<float>> start;
      for (int64_t i = 0; i < run.parameters(); ++i) start.push_back(run.whole_value(i));
      for (int step = 1; step <= 3; ++step) {
        run.store().begin_step(1);
        run.store().finish_gradients(run.stream());  // no unit was touched
        CHECK(run.update().grad_norm == 0);
      }
      for (int64_t i = 0; i < run.parameters(); ++i) {
        const std::vector<float> now = run.whole_value(i);
        const double shrunk = run.store()[i].info.decays ? std::pow(1 - 0.01 * 0.1, 3) : 1;
        double off = 0;
        for (size_t e = 0; e < now.size(); ++e) off = std::max(off, std::abs(now[e] - shrunk * start[size_t(i)][e]));
        CAPTURE(run.store()[i].info.name);
        CHECK(off < 1e-6);
        if (shrunk == 1) CHECK(now == start[static_cast<size_t>(i)]);
        for (const Optimizer::Part& part : run.optimizer().parts(i)) {
          for (int64_t e = 0; e < part.exp_avg.elements(); ++e) CHECK(part.exp_avg.f32()[e] == 0);
        }
      }
    }
  }
}
