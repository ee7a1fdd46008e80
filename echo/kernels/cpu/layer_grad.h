// What the gradients of whole recurrent layers share: the products of the gates' gradients, which a layer computes step
// by step into a buffer of a chunk, with weights, inputs and states; and the sums that are the gradients of biases.
#ifndef ECHO_KERNELS_CPU_LAYER_GRAD_H_
#define ECHO_KERNELS_CPU_LAYER_GRAD_H_
#include <vector>

#include "gemm.h"
#include "layer.h"

namespace echo {
namespace kernels {

// Columns [column, column + count) of the buffer are the gradients of rows [row, row + count) of a weight.
struct GatePiece {
  int64_t column, row, count;
};

// A gradient made of products: in the output itself where that is float32, otherwise in a buffer that is written to the
// output afterwards.
class Product {
 public:
  Product(const Call& call, const char* name, int64_t buffer_floats, Arena* arena);

  bool wanted() const { return !out_.skipped(); }
  // Elements from `offset` of the output on, which are those from `local` of the buffer on.
  float* at(int64_t offset, int64_t local) const { return data_ != nullptr ? data_ + offset : buffer_ + local; }
  // What the first product is added to.
  gemm::Start start(int64_t offset, int64_t stride) const {
    return {data_ != nullptr && adds_ ? data_ + offset : nullptr, stride};
  }
  void write(int64_t offset, int64_t n) const {
    if (data_ == nullptr) out_.write(offset, n, buffer_);
  }

 private:
  const Output out_;
  float *const data_, *const buffer_;
  const bool adds_;
};

class LayerGrad {
 public:
  // `width`: columns of the buffer, of which `of_input` and `of_state` are the gradients of the two products. A layer
  // has its inputs in this order: x, wi, bi, wh, bh, h0. `steps` of a chunk.
  LayerGrad(const Call& call, const LayerShape& shape, int64_t steps, int64_t width, std::vector<GatePiece> of_input,
            std::vector<GatePiece> of_state, Arena* arena);

  // Packs the weights.
  void begin();
  // The buffer, in the order of time.
  float* gates() const { return gates_; }
  // The gradient of the state before a step, from those of its gates, which begin at `row` of the buffer; it is added
  // to `start`.
  void state(int64_t row, gemm::Start start, float* dh) const;
  // Takes the gates' gradients of a chunk; the last one of the layer comes first.
  void take(const Chunk& chunk);
  // After all chunks.
  void write();

 private:
  void pack(const char* weight, int64_t columns, const std::vector<GatePiece>& pieces, float* const* to) const;
  void add_product(const Product& to, const std::vector<GatePiece>& pieces, int64_t first_row, int64_t rows,
                   const gemm::Operand& right, bool first) const;
  void add_weights(const Chunk& chunk, bool first) const;
  void add_bias(int64_t rows) const;
  void write_input(const Chunk& chunk) const;
  void write_bias(const char* name, const std::vector<GatePiece>& pieces) const;

  const Call& call_;
  const LayerShape shape_;
  const int64_t width_;
  const std::vector<GatePiece> of_input_, of_state_;
  const Product dx_, dwi_, dwh_;
  float *gates_, *dbias_, *scratch_, *right_;
  std::vector<float*> wi_, wh_;  // packed, piece by piece
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_LAYER_GRAD_H_
