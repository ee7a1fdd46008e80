#include "gemm.h"
#include "kernels.h"
#include "layer.h"
#include "lstm_rows.h"
#include "parallel.h"
#include "view.h"

namespace echo {
namespace kernels {
namespace {

class Forward {
 public:
  Forward(const Call& call, void* memory);

  size_t bytes() const { return arena_.bytes(); }
  void run();

 private:
  void begin();
  void project(const Chunk& chunk);
  void run_step(int64_t step, const Chunk& chunk);
  void run_tile(int64_t row, int64_t time, int64_t at, int64_t n, float* pre);
  float* pre_of(const Chunk& chunk);

  const Call& call_;
  const LayerShape shape_;
  const Places place_;
  const Output y_, pre_;
  Arena arena_;
  const bool direct_;  // `pre` is computed where it is wanted; otherwise in a buffer, some steps at a time
  const int64_t steps_;
  float *bias_, *c_, *h_, *scratch_, *wi_, *wh_, *buffer_;
};

Forward::Forward(const Call& call, void* memory)
    : call_(call),
      shape_(call),
      place_(call.places(4)),
      y_(call, "y"),
      pre_(call, "pre"),
      arena_(memory),
      direct_(!call.half() && !call.skips("pre")),
      steps_(direct_ ? std::max<int64_t>(shape_.T, 1) : chunk_steps(shape_)) {
  const int64_t B = shape_.B, H = shape_.H;
  bias_ = arena_.floats(4 * H);
  c_ = arena_.floats(B * H);
  h_ = arena_.floats(B * H);
  scratch_ = arena_.floats(std::max(gemm::scratch_floats(steps_ * B, shape_.I), gemm::scratch_floats(B, H)));
  const int64_t wi_floats = gemm::packed_floats(4 * H, shape_.I), wh_floats = gemm::packed_floats(4 * H, H);
  // In place, wi is done with when wh is packed: they share their room.
  wi_ = arena_.floats(direct_ ? std::max(wi_floats, wh_floats) : wi_floats);
  wh_ = direct_ ? wi_ : arena_.floats(wh_floats);
  buffer_ = direct_ ? nullptr : arena_.floats(steps_ * B * 4 * H);
}

void Forward::begin() {
  const int64_t H = shape_.H, states = shape_.B * H;
  load(Input(call_, "bi"), 4 * H, bias_);
  float buffer[kTile];
  const Input bh(call_, "bh");
  in_tiles(4 * H, kTile, [&](int64_t at, int64_t n) { add_to(bias_ + at, bh.read(at, n, buffer), n); });
  load(Input(call_, "h0"), states, h_);
  load(Input(call_, "c0"), states, c_);
}

float* Forward::pre_of(const Chunk& chunk) {
  if (!direct_) return buffer_;
  return static_cast<float*>(call_.out("pre")) + chunk.time * shape_.B * 4 * shape_.H;
}

// The input's part of `pre` for all steps of a chunk.
void Forward::project(const Chunk& chunk) {
  const int64_t B = shape_.B, I = shape_.I, H = shape_.H;
  const bool half = call_.half();
  if (chunk.begin == 0) gemm::pack({call_.in("wi"), half, 4 * H, I, I, 1}, wi_);
  const gemm::Operand x{call_.in("x"), half, (chunk.end - chunk.begin) * B, I, I, 1};
  gemm::multiply(x.moved(chunk.time * B * I), wi_, 4 * H, {bias_, 0}, pre_of(chunk), 4 * H, scratch_);
  if (chunk.begin == 0) gemm::pack({call_.in("wh"), half, 4 * H, H, H, 1}, wh_);
}

void Forward::run_step(int64_t step, const Chunk& chunk) {
  const int64_t B = shape_.B, H = shape_.H, time = shape_.time(step);
  float* const pre = pre_of(chunk) + (time - chunk.time) * B * 4 * H;
  gemm::multiply({h_, false, B, H, H, 1}, wh_, 4 * H, {pre, 4 * H}, pre, 4 * H, scratch_);
  in_chunks(B, B * H, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      in_tiles(H, kTile, [&](int64_t at, int64_t n) { run_tile(row, time, at, n, pre + row * 4 * H); });
    }
  });
}

// Elements [at, at + n) of a row's cell.
void Forward::run_tile(int64_t row, int64_t time, int64_t at, int64_t n, float* pre) {
  const int64_t H = shape_.H, place = time * shape_.B + row;
  for (int64_t gate = 0; gate < 4; ++gate) pre_.write(place * 4 * H + gate * H + at, n, pre + gate * H + at);
  float* const h = h_ + row * H + at;
  cell_step(n, {pre + place_[0] * H + at, pre + place_[1] * H + at, pre + place_[2] * H + at, pre + place_[3] * H + at},
            c_ + row * H + at, h);
  y_.write(place * H + at, n, h);
}

void Forward::run() {
  begin();
  for (int64_t first = 0; first < shape_.T; first += steps_) {
    const Chunk chunk(shape_, first, steps_);
    project(chunk);
    for (int64_t step = chunk.begin; step < chunk.end; ++step) run_step(step, chunk);
  }
  Output(call_, "hT").write(0, shape_.B * shape_.H, h_);
  Output(call_, "cT").write(0, shape_.B * shape_.H, c_);
}

void lstm_layer(const Call& call) { Forward(call, call.raw().workspace).run(); }

size_t lstm_layer_workspace(const Call& call) { return Forward(call, nullptr).bytes(); }

const CpuKernel kLstmLayer("lstm_layer", lstm_layer, lstm_layer_workspace);

}  // namespace
}  // namespace kernels
}  // namespace echo
