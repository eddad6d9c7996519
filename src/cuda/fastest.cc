#include "cuda/fastest.h"

#include <algorithm>
#include <vector>

#include "cuda/device_timer.h"
#include "cuda/graph_counters.h"

namespace snug::cuda {
namespace {

constexpr int kTimedRounds = 3;  // of each; the fastest counts
constexpr int kRunsOfRound = 4;
constexpr float kHopeless = 1.2f;  // times the fastest so far: not timed any further
// Heavy work, one piece after the other, brings a large GPU to its power limit within some 30 ms.
// There those ways are fastest that need least energy, which few runs do not show: what comes near
// the fastest is run on for longer, and what is close then some more times in turn, since clocks
// drift.
constexpr float kNear = 1.15f, kClose = 1.03f;
constexpr float kReachLimitMilliseconds = 30, kSettleMilliseconds = 8, kLongMilliseconds = 16;
constexpr int kTurns = 3;
// What clearing a workspace costs in a graph beyond what it does on a stream: kernels on both sides
// wait for it (bench/gpu.py kernels). Nothing where the graph clears all counters at its beginning.
constexpr float kFillMilliseconds = 0.004f;

using Work = std::function<bool()>;

float fills_milliseconds(const Contest& contest, const Work& work) {
  return kFillMilliseconds * float(fills_of(contest.stream, work, contest.counters).left);
}

// Milliseconds of a run in the fastest of some rounds; 0 where work() returns false. Runs follow
// each other on the device as they do in a step's graph: one that is not counted keeps it busy
// meanwhile. One that is hopeless beside `best` (0: there is none) is given up early.
float fastest_run(const Contest& contest, const Work& work, float best) {
  if (!work()) return 0;  // loads the kernel
  DeviceTimer timer(contest.stream);
  const auto time = [&](int runs) {
    work();
    timer.start();
    for (int run = 0; run < runs; ++run) work();
    return timer.stop() / float(runs);
  };
  float fastest = time(1);
  if (best > 0 && fastest > kHopeless * best) return fastest;
  for (int round = 0; round < kTimedRounds; ++round) {
    const float now = time(kRunsOfRound);
    fastest = round == 0 ? now : std::min(fastest, now);
  }
  return fastest + fills_milliseconds(contest, work);
}

// Keeps the device busy with runs of `guess` milliseconds each.
void run_for(float milliseconds, const Work& work, float guess) {
  for (float left = milliseconds; left > 0; left -= guess) work();
}

// As fastest_run(), in a long row of runs, `guess` milliseconds each, behind others of that kind.
float settled_run(const Contest& contest, const Work& work, float guess) {
  run_for(kSettleMilliseconds, work, guess);
  const int runs = std::max(int(kLongMilliseconds / guess), 1);
  DeviceTimer timer(contest.stream);
  timer.start();
  for (int run = 0; run < runs; ++run) work();
  return timer.stop() / float(runs) + fills_milliseconds(contest, work);
}

// Ways with their times so far; 0: not timed.
class Table {
 public:
  explicit Table(size_t ways) : times_(ways) {}

  float& time(size_t way) { return times_[way]; }
  Fastest best() const {
    Fastest best;
    for (size_t i = 0; i < times_.size(); ++i) {
      if (times_[i] > 0 && (best.milliseconds == 0 || times_[i] < best.milliseconds)) {
        best = {i, times_[i]};
      }
    }
    return best;
  }
  std::vector<size_t> within(float share) const {
    const float most = share * best().milliseconds;
    std::vector<size_t> list;
    for (size_t i = 0; i < times_.size(); ++i) {
      if (times_[i] > 0 && times_[i] <= most) list.push_back(i);
    }
    return list;
  }

 private:
  std::vector<float> times_;
};

}  // namespace

Fastest fastest_of(size_t ways, const Contest& contest, const std::function<bool(size_t)>& do_it) {
  const auto work = [&](size_t i) { return [&do_it, i] { return do_it(i); }; };
  Table first(ways);
  for (size_t i = 0; i < ways; ++i) {
    first.time(i) = fastest_run(contest, work(i), first.best().milliseconds);
  }
  const Fastest best = first.best();
  const std::vector<size_t> near = first.within(kNear);
  if (!contest.at_power_limit || near.size() < 2) return best;

  const auto settled = [&](size_t i) { return settled_run(contest, work(i), best.milliseconds); };
  run_for(kReachLimitMilliseconds, work(best.way), best.milliseconds);
  Table second(ways);
  for (const size_t i : near) second.time(i) = settled(i);
  const std::vector<size_t> close = second.within(kClose);
  if (close.size() < 2) return second.best();

  Table third(ways);
  for (const size_t i : close) third.time(i) = second.time(i);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const size_t i : close) third.time(i) += settled(i);
  }
  const Fastest steadiest = third.best();
  return {steadiest.way, steadiest.milliseconds / (1 + kTurns)};
}

}  // namespace snug::cuda
