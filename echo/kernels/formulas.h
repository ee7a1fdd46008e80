// What cells and layer norms compute for one unit: once, for the CPU and for CUDA devices. Each computes exp and tanh
// in its own way, so gates come in as they were computed there. The forward steps stand in each: there, compilers contract
// products and sums by how they are written.
#ifndef ECHO_KERNELS_FORMULAS_H_
#define ECHO_KERNELS_FORMULAS_H_

#if defined(__CUDACC__) || defined(ECHO_EMULATED)
#define ECHO_FORMULA __device__ inline
#else
#define ECHO_FORMULA inline __attribute__((always_inline))
#endif

namespace echo_formulas {

// What gradients need of a gate: its value, its derivative, and 1 - value for a logistic function. Each is as exact as
// the value is: none is taken from a value that was rounded to 1.
struct Sigmoid {
  float value, slope, rest;
};

struct Tanh {
  float value, slope, rest;  // rest: 1 - |value|
};

struct LstmGates {
  Sigmoid i, f;
  Tanh g;
  Sigmoid o;

  ECHO_FORMULA float next_cell(float c) const { return f.value * c + i.value * g.value; }
};

// Gradients of the pre-activations of an LSTM step.
struct LstmGrads {
  float i, f, g, o;
};

// Those that make the cell, and the gradient of the cell c before it (returned), from d, that of the cell.
ECHO_FORMULA float cell_grad(const LstmGates& gate, float c, float d, LstmGrads* grads) {
  grads->i = d * gate.g.value * gate.i.slope;
  grads->f = d * c * gate.f.slope;
  grads->g = d * gate.i.value * gate.g.slope;
  return d * gate.f.value;
}

// All of them, and the gradient of c (returned), from those of h = o tanh(cell) and of the cell.
ECHO_FORMULA float lstm_grad(const LstmGates& gate, const Tanh& cell, float c, float dh, float dcell,
                             LstmGrads* grads) {
  grads->o = dh * cell.value * gate.o.slope;
  return cell_grad(gate, c, dcell + dh * gate.o.value * cell.slope, grads);
}

struct GruGates {
  Sigmoid r, z;
  Tanh n;
};

// z itself: where n is h, what comes out has to be h, too.
ECHO_FORMULA float gru_next(float z, float n, float h) { return (1.f - z) * n + z * h; }

// Gradients of a GRU step: those of r and z are those of both x and s; n is that of x and sn that of s.
struct GruGrads {
  float r, z, n, sn, h;
};

// From d, that of the next h; `n` is the value of the gate, which each rounds in its own way.
ECHO_FORMULA GruGrads gru_grad(const GruGates& gate, float n, float s_n, float h, float d) {
  const float dn = d * gate.z.rest * gate.n.slope;
  return {dn * s_n * gate.r.slope, d * (h - n) * gate.z.slope, dn, dn * gate.r.value, d * gate.z.value};
}

// Gradients in front of a product that takes the state after its reset gate: of the gates, and of the state.
struct ResetGrads {
  float r, z, h;
};

// From those of r h and of the weight of the new state, whose sign is that of z in it.
ECHO_FORMULA ResetGrads reset_grad(const Sigmoid& r, const Sigmoid& z, float sign, float h, float d_rh, float d_u) {
  return {d_rh * h * r.slope, sign * d_u * z.slope, d_rh * r.value};
}

// Behind it: of the state, of the weight u of the new one, and of what tanh takes.
struct MixGrads {
  float h, u, n;
};

// `value` is that of n, which each rounds in its own way.
ECHO_FORMULA MixGrads mix_grad(const Tanh& n, float value, float u, float h, float d) {
  return {d * (1.f - u), d * (value - h), d * u * n.slope};
}

// Of a row.
struct Moments {
  float mean, scale;  // scale: 1 / sqrt(variance + eps)

  ECHO_FORMULA float norm(float x) const { return (x - mean) * scale; }
  // The gradient of a value, from its norm, that one's gradient d, and the row's means of d and of d times the norm.
  ECHO_FORMULA float grad(float norm, float d, float mean_d, float mean_product) const {
    return scale * (d - mean_d - norm * mean_product);
  }
};

}  // namespace echo_formulas
#endif  // ECHO_KERNELS_FORMULAS_H_
