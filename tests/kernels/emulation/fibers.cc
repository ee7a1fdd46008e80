// Runs the blocks of a launch: each thread is a fiber with a stack of its own. Warps take turns in an order drawn from
// a seed; the lanes of a warp run one after the other, first to last or last to first, each until it waits.
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <random>
#include <vector>

struct half_t {
  unsigned short bits;
};
#include "cuda_shim.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulation {

thread_local Here* here = nullptr;

namespace {

const size_t kStackBytes = 128 << 10;
const long kMostSpins = 4000000;  // of a launch, before it counts as stuck

enum class State { kReady, kWarp, kBlock, kDone };

struct Fiber {
  ucontext_t context;
  Here here;
  State state = State::kReady;
  char* stack = nullptr;
  void* shadow = nullptr;  // AddressSanitizer's
};

struct Warp {
  std::vector<Fiber*> lanes;
  unsigned words[32];
  int waiting = 0, alive = 0;
};

struct Block {
  std::vector<Warp> warps;
  std::vector<float> shared;
  int waiting = 0, alive = 0;
};

typedef void (*Kernel)(void* const*);

struct Run {
  Kernel kernel;
  void* const* arguments;
  std::mt19937 random;
  ucontext_t scheduler;
  Fiber* current = nullptr;
  long spins = 0;
  const void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  void* shadow = nullptr;
};

thread_local Run* run = nullptr;

void leave(bool forever) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(forever ? nullptr : &run->current->shadow, run->stack_bottom, run->stack_bytes);
#else
  (void)forever;
#endif
  Fiber* const me = run->current;
  swapcontext(&me->context, &run->scheduler);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(me->shadow, &run->stack_bottom, &run->stack_bytes);
#endif
}

void body() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &run->stack_bottom, &run->stack_bytes);
#endif
  run->kernel(run->arguments);
  run->current->state = State::kDone;
  leave(true);
}

void enter(Fiber* fiber) {
  run->current = fiber;
  here = &fiber->here;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&run->shadow, fiber->stack, kStackBytes);
#endif
  swapcontext(&run->scheduler, &fiber->context);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(run->shadow, nullptr, nullptr);
#endif
}

// Stacks stay for the next block.
char* stack_of(size_t number) {
  static thread_local std::vector<char*> stacks;
  while (stacks.size() <= number) {
    void* made = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return nullptr;
    stacks.push_back(static_cast<char*>(made));
  }
  return stacks[number];
}

void release(Warp* warp, State from) {
  for (Fiber* fiber : warp->lanes) {
    if (fiber->state == from) fiber->state = State::kReady;
  }
}

// Lets every lane of a warp that can run do so until it waits. Whether one could.
bool advance(Block* block, Warp* warp) {
  bool moved = false;
  const bool backwards = run->random() & 1;
  for (size_t i = 0; i < warp->lanes.size(); ++i) {
    Fiber* fiber = warp->lanes[backwards ? warp->lanes.size() - 1 - i : i];
    if (fiber->state != State::kReady) continue;
    moved = true;
    enter(fiber);
    if (fiber->state == State::kWarp) ++warp->waiting;
    if (fiber->state == State::kBlock) ++block->waiting;
    if (fiber->state == State::kDone) --warp->alive, --block->alive;
  }
  if (warp->waiting == warp->alive && warp->waiting > 0) {
    warp->waiting = 0;
    release(warp, State::kWarp);
  }
  if (block->waiting == block->alive && block->waiting > 0) {
    block->waiting = 0;
    for (Warp& each : block->warps) release(&each, State::kBlock);
  }
  return moved;
}

struct Launch {
  Index grid, block;
  size_t shared_bytes;
};

bool prepare(const Launch& launch, Index at, size_t first_stack, Block* block, std::vector<Fiber>* fibers) {
  const unsigned threads = launch.block.x * launch.block.y;
  block->shared.assign(launch.shared_bytes / 4 + 4, NAN);  // unwritten memory is not a number
  block->warps.resize((threads + 31) / 32);
  block->alive = static_cast<int>(threads);
  float* shared = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(block->shared.data()) + 15) / 16 * 16);
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& fiber = (*fibers)[t];
    Warp& warp = block->warps[t / 32];
    fiber.stack = stack_of(first_stack + t);
    if (fiber.stack == nullptr) return false;
    fiber.here = {{t % launch.block.x, t / launch.block.x, 0}, at, launch.block, launch.grid, shared, warp.words};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, body, 0);
    warp.lanes.push_back(&fiber);
    ++warp.alive;
  }
  return true;
}

// Runs blocks side by side until all threads are done: false where they wait for each other for ever.
bool run_blocks(std::vector<Block>* blocks) {
  struct Turn {
    Block* block;
    Warp* warp;
  };
  std::vector<Turn> turns;
  for (Block& block : *blocks) {
    for (Warp& warp : block.warps) turns.push_back({&block, &warp});
  }
  size_t stuck = 0;  // turns in a row in which nothing moved
  while (!turns.empty()) {
    const size_t pick = run->random() % turns.size();
    const Turn turn = turns[pick];
    const long spins = run->spins;
    const bool moved = advance(turn.block, turn.warp);
    if (turn.warp->alive == 0) {
      turns[pick] = turns.back();
      turns.pop_back();
    }
    stuck = moved && run->spins == spins ? 0 : stuck + 1;
    if (run->spins > kMostSpins || (stuck > 200 * turns.size() + 100000 && !moved)) return false;
  }
  return true;
}

}  // namespace

void wait_for_warp() {
  run->current->state = State::kWarp;
  leave(false);
}

void wait_for_block() {
  run->current->state = State::kBlock;
  leave(false);
}

void let_others_run() {
  ++run->spins;
  leave(false);
}

float half_bits_to_float(unsigned short bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  if (exponent == 31) value = fraction ? NAN : INFINITY;
  return bits >> 15 ? -value : value;
}

unsigned short float_to_half_bits(float value) {
  const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(size)) return sign | 0x7e00;
  if (size >= 65520.f) return sign | 0x7c00;
  if (size < 6.103515625e-5f) return static_cast<unsigned short>(sign + std::lrint(std::ldexp(size, 24)));
  int exponent;
  const float fraction = std::frexp(size, &exponent);  // [0.5, 1)
  const long rounded = std::lrint(std::ldexp(fraction, 11)) - 1024;
  return static_cast<unsigned short>(sign + ((exponent + 14) << 10) + rounded);
}

}  // namespace emulation

// Runs a kernel. 0, or 1 where its threads wait for each other for ever, or there is no memory for them.
extern "C" __attribute__((visibility("default"))) int emulation_run(void (*kernel)(void* const*),
                                                                    void* const* arguments, const unsigned* grid,
                                                                    const unsigned* block, size_t shared_bytes,
                                                                    int at_once, unsigned seed) {
  using namespace emulation;
  const Launch launch = {{grid[0], grid[1], 1}, {block[0], block[1], 1}, shared_bytes};
  Run here_and_now;
  here_and_now.kernel = kernel, here_and_now.arguments = arguments;
  here_and_now.random.seed(seed);
  run = &here_and_now;
  const size_t count = static_cast<size_t>(grid[0]) * grid[1], together = at_once ? count : 1;
  const size_t threads = block[0] * block[1];
  std::vector<std::vector<Fiber>> fibers(together);
  bool good = true;
  for (size_t first = 0; first < count && good; first += together) {
    std::vector<Block> blocks(together);
    for (size_t i = 0; i < together && good; ++i) {
      fibers[i].assign(threads, Fiber());
      const unsigned number = static_cast<unsigned>(first + i);
      good = prepare(launch, {number % grid[0], number / grid[0], 0}, i * threads, &blocks[i], &fibers[i]);
    }
    good = good && run_blocks(&blocks);
  }
  run = nullptr;
  return good ? 0 : 1;
}
