// What both passes of attention know of scores and weights besides products: the scale, the mask, lengths and dropout.
#ifndef ECHO_KERNELS_CPU_ATTENTION_H_
#define ECHO_KERNELS_CPU_ATTENTION_H_
#include <cmath>
#include <string>

#include "bits.h"
#include "blocks.h"
#include "check.h"
#include "clones.h"
#include "view.h"

namespace echo {
namespace kernels {

enum Masking { kAdds = 0, kSelects = 1, kMultiplies = 2 };

// Products of queries and keys become scores. `mask` is NULL where there is none.
ECHO_INLINE void finish_scores(float* __restrict scores, const float* __restrict mask, float scale, Masking masking,
                               float fill, int64_t columns) {
  if (mask == nullptr) {
    for (int64_t j = 0; j < columns; ++j) scores[j] *= scale;
  } else if (masking == kAdds) {
    for (int64_t j = 0; j < columns; ++j) scores[j] = scores[j] * scale + mask[j];
  } else {
    for (int64_t j = 0; j < columns; ++j) scores[j] = mask[j] != 0.0f ? scores[j] * scale : fill;
  }
}

ECHO_INLINE void multiply_rows(float* __restrict x, const float* __restrict y, int64_t n) {
  for (int64_t j = 0; j < n; ++j) x[j] *= y[j];
}

// A row of the mask, and a row of what weights are multiplied by; NULL where there is none.
struct MaskRow {
  const float *mask, *factors;
};

class Scores {
 public:
  explicit Scores(const Call& call)
      : scale(static_cast<float>(call.param("scale") / (call.param("root") != 0 ? std::sqrt(call["D"]) : 1.0))),
        masking(static_cast<Masking>(static_cast<int>(call.param("masking")))),
        fill(static_cast<float>(call.param("fill"))),
        N_(call["N"]),
        Tq_(call["Tq"]),
        Tk_(call["Tk"]),
        batches_(call["Gb"]),
        heads_(call["Gh"]),
        rows_(call["R"]),
        per_batch_(std::max<int64_t>(heads_ > 1     ? heads_
                                     : batches_ > 1 ? N_ / batches_
                                                    : 1,
                                     1)),
        per_query_(call["L"] != N_),
        lengths_(call, Tk_),
        has_lengths_(call.in("lengths") != nullptr),
        mask_(call, "mask"),
        bits_(static_cast<const uint8_t*>(call.in("bits"))),
        factor_(call.in("factor") == nullptr ? 0.0f : *static_cast<const float*>(call.in("factor"))) {
    const auto fits = [](int64_t size, int64_t whole) { return size == 1 || size == whole; };
    if (has_lengths_ && per_query_ && call["L"] != N_ * Tq_) {
      throw WrongCall(std::string(call.name()) + ": expected lengths for each item or each query, got " +
                      std::to_string(call["L"]));
    }
    if (!mask_.absent() &&
        (N_ % per_batch_ != 0 || !fits(batches_, N_ / per_batch_) || !fits(heads_, per_batch_) || !fits(rows_, Tq_))) {
      throw WrongCall(std::string(call.name()) + ": a mask of " + std::to_string(batches_) + " batches, " +
                      std::to_string(heads_) + " heads and " + std::to_string(rows_) + " rows does not fit " +
                      std::to_string(N_) + " items with " + std::to_string(per_batch_) + " heads and " +
                      std::to_string(Tq_) + " queries");
    }
  }

  bool has_bits() const { return bits_ != nullptr; }

  // Keys that count for a query.
  int64_t length(int64_t n, int64_t query) const { return lengths_[per_query_ ? n * Tq_ + query : n]; }

  // The most that count for any query of an item.
  int64_t most(int64_t n) const {
    if (!has_lengths_ || !per_query_) return length(n, 0);
    int64_t found = 0;
    for (int64_t query = 0; query < Tq_; ++query) found = std::max(found, length(n, query));
    return found;
  }

  // Of the keys from `key` on, so many of `columns` count for a query.
  int64_t inside(int64_t n, int64_t query, int64_t key, int64_t columns) const {
    return std::min(std::max<int64_t>(length(n, query) - key, 0), columns);
  }

  // What a query has for columns <= kKeysAtOnce keys from `key` on, in the tensors or in `buffer` of twice kKeysAtOnce.
  MaskRow row(int64_t n, int64_t query, int64_t key, int64_t columns, float* buffer) const {
    MaskRow found{nullptr, nullptr};
    if (!mask_.absent()) {
      const int64_t batch = batches_ == 1 ? 0 : n / per_batch_, head = heads_ == 1 ? 0 : n % per_batch_;
      const int64_t line = (batch * heads_ + head) * rows_ + (rows_ == 1 ? 0 : query);
      found.mask = mask_.read(line * Tk_ + key, columns, buffer);
    }
    if (masking == kMultiplies) found.factors = found.mask;
    if (bits_ == nullptr) return found;
    const int64_t at = (n * Tq_ + query) * Tk_ + key, skipped = at % 8;
    uint8_t flags[kKeysAtOnce + 8];
    unpack_bits(bits_ + at / 8, flags, skipped + columns);
    float* const factors = buffer + kKeysAtOnce;
    if (found.factors == nullptr) {
      cloned<factors_of>(flags + skipped, factor_, factors, columns);
    } else {
      multiply_by_flags(found.factors, flags + skipped, factor_, factors, columns);
    }
    found.factors = factors;
    return found;
  }

  const float scale;
  const Masking masking;
  const float fill;

 private:
  static ECHO_INLINE void factors_of(const uint8_t* __restrict flags, float factor, float* __restrict to, int64_t n) {
    for (int64_t j = 0; j < n; ++j) to[j] = flags[j] ? factor : 0.0f;
  }

  const int64_t N_, Tq_, Tk_, batches_, heads_, rows_, per_batch_;
  const bool per_query_;
  const Lengths lengths_;
  const bool has_lengths_;
  const Input mask_;
  const uint8_t* const bits_;
  const float factor_;
};

}  // namespace kernels
}  // namespace echo
#endif  // ECHO_KERNELS_CPU_ATTENTION_H_
