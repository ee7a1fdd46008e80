// Wraps two passes of a running MXNet: MXGradient, to apply a plan, and MXPlanMemory, to read the training graph; and
// what operators allow in place, which a plan may restrict; and one environment variable, as MXNet reads it.
//
// NNVM keeps its passes as std::function objects in a registry that libmxnet.so exports. Only the invoker pointer of
// such an object is exchanged: one aligned word, written atomically, and written back by echo_uninstall.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "batch_norm.h"
#include "build_id.h"
#include "capture.h"
#include "check_marks.h"
#include "deconvolution.h"
#include "gradient.h"
#include "gradient_copies.h"
#include "gradient_rules.h"
#include "inplace.h"
#include "mxnet_api.h"
#include "pointwise.h"
#include "storage.h"

#define ECHO_EXPORT extern "C" __attribute__((visibility("default")))

namespace echo {
namespace {

using Invoker = void* (*)(void* result, void* functor, RawGraph* graph);

struct Wrapped {
  RawPass* pass = nullptr;
  Invoker original = nullptr;
};

std::mutex g_mutex;
std::shared_mutex g_environment;
bool g_installed = false;
Wrapped g_gradient, g_memory;

thread_local bool t_capturing = false, t_capturing_nodes = false;
thread_local std::string t_captured;
thread_local std::string t_error;

// The graph that a pass has made, destroyed if an exception leaves the wrapper: its caller then expects none.
class Made {
 public:
  explicit Made(void* graph) : graph_(static_cast<RawGraph*>(graph)) {}
  ~Made() {
    if (graph_) api().destroy_graph(graph_);
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  void hand_over() { graph_ = nullptr; }

 private:
  RawGraph* graph_;
};

void* gradient_pass(void* result, void* functor, RawGraph* graph) {
  const Forward forward = collect_forward(*graph);
  const GradientRules wanted = collect_gradient_rules(*graph);
  g_gradient.original(result, functor, graph);
  Made made(result);
  apply_gradient_rules(wanted, static_cast<RawGraph*>(result));
  copy_gradients(static_cast<RawGraph*>(result));
  if (!forward.nodes.empty()) apply_plan(forward, static_cast<RawGraph*>(result));
  made.hand_over();
  return result;
}

// MXNet's memory pass reads its match range from the environment. While one graph has its own there, others wait.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const std::string& value) : name_(name) {
    const char* before = std::getenv(name);
    was_set_ = before != nullptr;
    if (was_set_) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedEnvironment() {
    if (was_set_)
      setenv(name_, before_.c_str(), 1);
    else
      unsetenv(name_);
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  const char* name_;
  bool was_set_;
  std::string before_;
};

void plan_memory(void* result, void* functor, RawGraph* graph) {
  const std::string* range = match_range_of(*graph);
  if (range && (*range == "-1" || *range == "-1s")) {
    Reads reads = reads_of(*graph);
    reads.adds_in_place = reads.count.empty() || *range == "-1s";
    std::shared_lock<std::shared_mutex> together(g_environment);
    g_memory.original(result, functor, graph);
    Made made(result);
    assign_storage(reads, static_cast<RawGraph*>(result));
    made.hand_over();
  } else if (range) {
    std::unique_lock<std::shared_mutex> alone(g_environment);
    ScopedEnvironment environment("NNVM_EXEC_MATCH_RANGE", *range);
    g_memory.original(result, functor, graph);
  } else {
    std::shared_lock<std::shared_mutex> together(g_environment);
    g_memory.original(result, functor, graph);
  }
}

void* memory_pass(void* result, void* functor, RawGraph* graph) {
  const ScopedInplace options(is_inference(*graph));
  plan_memory(result, functor, graph);
  Made made(result);
  if (t_capturing) t_captured = graph_to_json(*static_cast<RawGraph*>(result), t_capturing_nodes);
  made.hand_over();
  return result;
}

RawPass* find_pass(const char* name) {
  for (RawPass* pass : api().pass_registry()->entries)
    if (pass->name == name) return pass;
  return nullptr;
}

// The path of another copy of this library that holds `code`; empty if another library does.
std::string other_copy(void* code) {
  Dl_info found{};
  if (!dladdr(code, &found) || !found.dli_fname) return "";
  void* lib = dlopen(found.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (!lib) return "";
  const bool is_echo = dlsym(lib, "echo_install") != nullptr;
  dlclose(lib);
  return is_echo ? found.dli_fname : "";
}

bool wrap(const char* name, Invoker replacement, Wrapped* wrapped) {
  wrapped->pass = find_pass(name);
  if (!wrapped->pass || !wrapped->pass->body_manager) {
    t_error = std::string("the pass ") + name + " is not registered";
    return false;
  }
  const std::string other = other_copy(wrapped->pass->body_invoker);
  if (!other.empty()) {
    t_error = "another copy of it, " + other + ", has wrapped MXNet's passes already";
    return false;
  }
  wrapped->original = reinterpret_cast<Invoker>(wrapped->pass->body_invoker);
  __atomic_store_n(&wrapped->pass->body_invoker, reinterpret_cast<void*>(replacement), __ATOMIC_SEQ_CST);
  return true;
}

bool is_ours(Invoker replacement, const Wrapped& wrapped) {
  return wrapped.pass->body_invoker == reinterpret_cast<void*>(replacement);
}

void unwrap(Wrapped* wrapped) {
  __atomic_store_n(&wrapped->pass->body_invoker, reinterpret_cast<void*>(wrapped->original), __ATOMIC_SEQ_CST);
}

}  // namespace
}  // namespace echo

// What plans may ask for (`echo::allow`): to be called before echo_install; without, no plan is applied.
ECHO_EXPORT void echo_allow(const char* again, const char* all_outputs, const char* exchanges) {
  std::lock_guard<std::mutex> lock(echo::g_mutex);
  echo::allow(again, all_outputs, exchanges);
}

// Wraps both passes of the libmxnet.so at `path`, which must be loaded already. 0 on success, see echo_error otherwise.
ECHO_EXPORT int echo_install(const char* path) {
  using namespace echo;
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_installed) return 0;
  void* lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!lib) {
    t_error = std::string(path) + " is not loaded in this process";
    return 1;
  }
  MxnetApi table;
  std::string missing;
  if (!load_api(lib, &table, &missing)) {
    t_error = "libmxnet.so does not export " + missing;
    return 1;
  }
  // Before anything of MXNet's is read or written: the functions may be there and memory laid out otherwise all the same.
  const std::string wrong = why_not_built_as_the_wheels(path);
  if (!wrong.empty()) {
    t_error = wrong;
    return 1;
  }
  if (!wrap("MXGradient", gradient_pass, &g_gradient)) return 1;
  if (!wrap("MXPlanMemory", memory_pass, &g_memory)) {
    unwrap(&g_gradient);
    return 1;
  }
  wrap_inplace();
  wrap_batch_norm();
  wrap_deconvolution();
  wrap_getenv(lib);
  g_installed = true;
  return 0;
}

// Puts MXNet's own passes back. 0 on success; 1, with nothing changed, where another library wrapped them since.
ECHO_EXPORT int echo_uninstall() {
  using namespace echo;
  std::lock_guard<std::mutex> lock(g_mutex);
  if (!g_installed) return 0;
  if (!is_ours(gradient_pass, g_gradient) || !is_ours(memory_pass, g_memory)) {
    t_error = "another library has wrapped MXNet's passes since";
    return 1;
  }
  unwrap_getenv();
  unwrap_batch_norm();
  unwrap_deconvolution();
  unwrap_inplace();
  unwrap(&g_gradient);
  unwrap(&g_memory);
  g_installed = false;
  return 0;
}

// From here to echo_capture_end every training graph that this thread binds is written down, its nodes only if they are
// asked for; the last one is kept.
ECHO_EXPORT void echo_capture_begin(int nodes) {
  echo::t_capturing = true;
  echo::t_capturing_nodes = nodes != 0;
  echo::t_captured.clear();
}

// The captured graph as JSON, valid until the thread's next capture; empty where nothing was bound.
ECHO_EXPORT const char* echo_capture_end() {
  echo::t_capturing = false;
  return echo::t_captured.c_str();
}

ECHO_EXPORT const char* echo_error() { return echo::t_error.c_str(); }
