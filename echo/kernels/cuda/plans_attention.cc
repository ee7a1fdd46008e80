// attention: its scores come tile by tile.
#include <algorithm>
#include <cmath>

#include "plans.h"

namespace echo_cuda {
namespace {

// Tiles of `rows` rows for each item; tiles of `columns` columns.
Grid grid_of_tiles(Long items, Long rows, Long columns) {
  Grid grid;
  grid.x = items * over(rows, kTile);
  grid.y = std::max<Long>(1, over(columns, kTile));
  return grid;
}

// What both passes take. Throws WrongCall where sizes of the mask or of lengths do not fit.
template <typename Arguments>
void fill(const Call& call, Arguments* a) {
  a->items = call["N"], a->queries = call["Tq"], a->keys = call["Tk"], a->depth = call["D"];
  a->value_depth = call["Dv"];
  a->q = call.in("q"), a->k = call.in("k"), a->v = call.in("v"), a->lengths = call.in("lengths");
  a->mask = call.in("mask");
  a->bits = static_cast<const unsigned char*>(call.in("bits"));
  a->factor = static_cast<const float*>(call.in("factor"));
  a->scale = static_cast<float>(call.param("scale") / (call.param("root") != 0 ? std::sqrt(a->depth) : 1.0));
  a->fill = static_cast<float>(call.param("fill"));
  a->masking = a->mask != nullptr ? static_cast<int>(call.param("masking")) : kMaskAdds;
  a->lengths_type = call.in_dtype("lengths");
  a->per_query = a->lengths != nullptr && call["L"] != a->items;
  const Long batches = call["Gb"], heads = call["Gh"], rows = call["R"];
  a->heads = std::max<Long>(heads > 1 ? heads : batches > 1 ? a->items / batches : 1, 1);
  a->row_stride = rows == 1 ? 0 : a->keys;
  a->head_stride = heads == 1 ? 0 : rows * a->keys;
  a->batch_stride = batches == 1 ? 0 : heads * rows * a->keys;
  const auto fits = [](Long size, Long whole) { return size == 1 || size == whole; };
  if (a->per_query && call["L"] != a->items * a->queries) {
    throw echo::kernels::WrongCall(std::string(call.name()) + ": expected lengths for each item or each query, got " +
                                   std::to_string(call["L"]));
  }
  if (a->mask != nullptr && (a->items % a->heads != 0 || !fits(batches, a->items / a->heads) ||
                             !fits(heads, a->heads) || !fits(rows, a->queries))) {
    throw echo::kernels::WrongCall(std::string(call.name()) + ": the mask does not fit " + std::to_string(a->items) +
                                   " items with " + std::to_string(a->heads) + " heads");
  }
}

// The kernel's name, for a call with something to mask, or without.
template <typename Arguments>
std::string named(const char* kernel, const Arguments& a) {
  const bool masked = a.mask != nullptr || a.bits != nullptr || a.per_query != 0;
  return std::string(kernel) + (masked ? "_masked" : "");
}

void attention(const Call& call, Queue& queue) {
  Attention a = {};
  fill(call, &a);
  a.out = output(call, "out"), a.lse = output(call, "lse");
  a.wide = wide(call.half(), a.depth, {a.q, a.k}) & wide(call.half(), a.value_depth, {a.v});
  queue.launch(named("attention", a), call.half(), grid_of_tiles(a.items, a.queries, a.value_depth), a);
}

void attention_grad(const Call& call, Queue& queue) {
  AttentionGrad a = {};
  fill(call, &a);
  a.dout = call.in("dout"), a.out = call.in("out");
  a.lse = static_cast<const float*>(call.in("lse"));
  a.statistics = queue.floats(a.items * a.queries * 4);
  a.dq = output(call, "dq"), a.dk = output(call, "dk"), a.dv = output(call, "dv");
  a.wide = wide(call.half(), a.depth, {a.q, a.k}) & wide(call.half(), a.value_depth, {a.v, a.dout});
  const bool half = call.half();
  queue.launch("attention_delta", half, grid_of_rows(a.items * a.queries), a);
  queue.launch("attention_mend", half, grid_of_tiles(a.items, a.queries, 1), a);
  if (a.dq.data != nullptr) {
    queue.launch(named("attention_grad_queries", a), half, grid_of_tiles(a.items, a.queries, a.depth), a);
  }
  if (a.dk.data != nullptr || a.dv.data != nullptr) {
    const Long deepest = std::max(a.depth, a.value_depth);
    queue.launch("attention_grad_keys", half, grid_of_tiles(a.items, a.keys, deepest), a);
  }
  put_zeros(call, queue, "dlengths", call["L"]);
  put_zeros(call, queue, "dmask", call["Gb"] * call["Gh"] * call["R"] * call["Tk"]);
  put_zeros(call, queue, "dbits", (a.items * a.queries * a.keys + 7) / 8);
  put_zeros(call, queue, "dfactor", 1);
}

const CudaKernel kAttention("attention", attention);
const CudaKernel kAttentionGrad("attention_grad", attention_grad);

}  // namespace
}  // namespace echo_cuda
