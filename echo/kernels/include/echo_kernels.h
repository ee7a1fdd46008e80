// The C interface of the fused kernels: one call for every kernel, on the CPU and on CUDA devices.
//
// Arrays are dense and row-major. A tensor without data is absent: an optional input that is not there, or a gradient that
// nobody wants. Kernels work on float32 and float16 (which they accumulate in float32); all floating tensors of a call have
// one type. NAME_grad takes the gradients of NAME's outputs, then NAME's inputs, then NAME's outputs, and gives the
// gradients of the inputs; "reads" lists those of its inputs that it reads, the others may be absent. A gradient of an
// output that is absent counts as zeros. The specification of each is NAME in echo/kernels/reference/.
//
//   NAME              inputs                                            outputs                       params
//   lstm_cell         pre[B,4H] c[B,H]                                  h[B,H] c'[B,H]
//       gates i f g o: c' = sigmoid(f) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c')        reads dh dc' pre c
//   lstm_norm_cell    pre[B,4H] c[B,H] gamma[H] beta[H]                 h[B,H] c'[B,H]                eps
//       lstm_cell with h = sigmoid(o) tanh(norm(c')), norm the layer norm over H              reads dh dc' and the inputs
//   gru_cell          x[B,3H] s[B,3H] h[B,H]                            h'[B,H]
//       x from the input, s from the state, gates r z n: n = tanh(x_n + sigmoid(x_r + s_r) s_n);
//       h' = (1 - z) n + z h, z = sigmoid(x_z + s_z)                                          reads dh' x s h
//   mlp_score         keys[B,T,H] query[B,H] v[H] gamma[H]? beta[H]?    score[B,T]                    eps
//       v . tanh(norm(keys + query)), norm the layer norm over H where gamma is there         reads dscore and the inputs
//   weighted_sum      w[B,T] values[B,T,H]                              out[B,H]
//       the sum over T of w values                                                            reads dout w values
//   attention         q[N,Tq,D] k[N,Tk,D] v[N,Tk,Dv] lengths[N]? bias[Tq,Tk]?   out[N,Tq,Dv] lse[N,Tq]  scale
//       softmax(scale q k' + bias) v over the first lengths[n] keys (all where absent; 0: out is 0, lse -inf). lse: the
//       logarithm of the softmax's denominator, always float32. lengths: float32, float16 or int32. No gradient for
//       lengths (0) and bias (absent or 0).                                                   reads dout, inputs, out, lse
//   layer_norm        x[N,H] gamma[H] beta[H]                           y[N,H]                        eps
//                                                                                             reads dy x gamma
//   bias_act          x[N,H] b[H]                                       y[N,H]                        act
//       act(x + b), act 0 relu, 1 sigmoid, 2 tanh, 3 softrelu, 4 none                         reads dy y
//   sequence_reverse  x[T,B,R] lengths[B]?                              y[T,B,R]
//       y[t,b] = x[lengths[b]-1-t, b] where t < lengths[b], else x[t,b]; all T where absent. sequence_reverse_grad is the
//       same on dy                                                                            reads dy lengths
//   dropout           x[n]                                              y[n] bits[(n+7)/8]            keep seed offset
//       y = x / keep where the bit is 1, else 0 x. Bit i of byte j is element 8j+i. On the CPU with random != NULL the draws
//       are those of MXNet's Dropout (mt19937 states), otherwise of Philox4x32-10 from seed and offset  reads dy bits
//   relu              x[n]                                              y[n] bits[(n+7)/8]
//       the bit is x > 0; a NaN stays a NaN, as in MXNet                                      reads dy bits
//   pack_mask         mask[n]                                           bits[(n+7)/8] scale[1]
//       a mask of 0 and one other value, as MXNet's Dropout of ones is: the bit is mask != 0; scale, always float32, the
//       first element that is not 0, or 0. No gradient (zeros)                                reads nothing
//   apply_mask        x[n] bits[(n+7)/8] scale[1]                       y[n]
//       y = scale x where the bit is 1, else 0 x. No gradient for bits and scale (0)          reads dy bits scale
//   lstm_layer        x[T,B,I] wi[4H,I] bi[4H] wh[4H,H] bh[4H] h0[B,H] c0[B,H]   y[T,B,H] hT[B,H] cT[B,H] pre[T,B,4H]   reverse
//       pre[t] = x[t] wi' + bi + h[t-1] wh' + bh, then lstm_cell; reverse 1 goes from T-1 to 0   reads dy dhT dcT, inputs, y, pre
//   softmax_output    x[N,I] w[V,I] b[V]? label[N]                      prob[N,V]   grad_scale use_ignore ignore_label
//       softmax(x w' + b) and, whatever the gradient of prob, the gradient of MXNet's SoftmaxOutput: (prob - target) *     normalization
//       grad_scale / count; the target 1 - smooth_alpha at the label and smooth_alpha / (V - 1) elsewhere;                 smooth_alpha
//       with use_ignore nothing where the label is ignore_label; count 1 (normalization 0), N (1), or how many labels are
//       not ignore_label (2). label: float32, float16 or int32. CPU only.                     reads x w label prob
#ifndef ECHO_KERNELS_H_
#define ECHO_KERNELS_H_
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ECHO_FLOAT32 = 0, ECHO_FLOAT16 = 2, ECHO_UINT8 = 3, ECHO_INT32 = 4 };  // MXNet's numbers
enum { ECHO_SKIP = 0, ECHO_WRITE = 1, ECHO_ADD = 3 };                           // what happens to an output, MXNet's numbers
enum { ECHO_MOST_AXES = 5 };

typedef struct {
  void* data;
  int32_t dtype, ndim;
  int64_t shape[ECHO_MOST_AXES];
} EchoTensor;

typedef struct {
  const char* kernel;  // a NAME, or NAME_grad
  const EchoTensor* in;
  const EchoTensor* out;
  const int32_t* req;    // of each output; only gradients may be added to
  const double* params;  // as listed above
  int32_t num_in, num_out, num_params;
  void* workspace;        // of echo_KIND_workspace bytes, aligned to 64; its content does not matter
  size_t workspace_bytes;
  void* stream;  // CUDA: a CUstream, or NULL
  void* random;  // CPU: 1024 states of std::mt19937, or NULL
} EchoCall;

// Runs a kernel; on CUDA it is enqueued. 0, or 1 with nothing done: echo_kernels_error says which tensor has which shape
// and type, and what was expected.
__attribute__((visibility("default"))) int echo_cpu_call(const EchoCall* call);
__attribute__((visibility("default"))) int echo_cuda_call(const EchoCall* call);

// Whether a CUDA device, by the driver's number, runs kernels: loads them there, and launches one. 0, or 1: then
// echo_kernels_error says why not.
__attribute__((visibility("default"))) int echo_cuda_ready(int device);

// Bytes that a call needs as workspace (its tensors need no data for this); SIZE_MAX where the call is wrong.
__attribute__((visibility("default"))) size_t echo_cpu_workspace(const EchoCall* call);
__attribute__((visibility("default"))) size_t echo_cuda_workspace(const EchoCall* call);

// Which instructions the CPU kernels use: "avx512", "avx2" or "portable", the most that the processor has. The
// environment variable ECHO_KERNELS_LEVEL, read once, asks for less.
__attribute__((visibility("default"))) const char* echo_kernels_level(void);

// The last error of this thread.
__attribute__((visibility("default"))) const char* echo_kernels_error(void);

#ifdef __cplusplus
}
#endif
#endif  // ECHO_KERNELS_H_
