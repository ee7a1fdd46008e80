#include "nvrtc.h"

#include <dlfcn.h>
#include <locale.h>

#include <cstdlib>
#include <mutex>
#include <sstream>
#include <vector>

#include "driver.h"
#include "sources.h"

namespace echo_cuda {
namespace {

const char* const kOptions[] = {"--gpu-architecture=compute_50", "--std=c++17"};
// That of CUDA 9.0, because of shfl.sync; NVRTC writes its own, such as 7.8, which older drivers refuse.
const char kVersion[] = "6.0";

typedef struct ProgramState* Program;

struct Nvrtc {
  int (*version)(int*, int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile)(Program, int, const char* const*);
  int (*destroy)(Program*);
  int (*ptx_size)(Program, size_t*);
  int (*ptx)(Program, char*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
};

std::mutex g_mutex;  // of what was set
Places* g_set = nullptr;

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

template <typename Pointer>
bool find(void* library, const char* name, Pointer* to) {
  *to = reinterpret_cast<Pointer>(dlsym(library, name));
  return *to != nullptr;
}

Nvrtc open() {
  void* library = nullptr;
  const std::string of_wheel = places().nvrtc;  // the loader does not look into NVIDIA's wheels
  // CUDA 11.2 to 11.8 have the same name
  for (const std::string& name :
       {std::string("libnvrtc.so.11.2"), std::string("libnvrtc.so.11.1"), std::string("libnvrtc.so.11.0"), of_wheel}) {
    if (library == nullptr && !name.empty()) library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw DeviceError(
        "this installation has no compiled CUDA kernels, and there is no NVRTC 11 to compile them: pip "
        "install nvidia-cuda-nvrtc-cu11");
  }
  Nvrtc n;
  int major = 0, minor = 0;
  const bool complete = find(library, "nvrtcVersion", &n.version) && find(library, "nvrtcCreateProgram", &n.create) &&
                        find(library, "nvrtcCompileProgram", &n.compile) &&
                        find(library, "nvrtcDestroyProgram", &n.destroy) &&
                        find(library, "nvrtcGetPTXSize", &n.ptx_size) && find(library, "nvrtcGetPTX", &n.ptx) &&
                        find(library, "nvrtcGetProgramLogSize", &n.log_size) &&
                        find(library, "nvrtcGetProgramLog", &n.log);
  if (!complete || n.version(&major, &minor) != 0 || major != 11) {
    throw DeviceError("expected NVRTC 11 to compile the CUDA kernels, got version " + std::to_string(major) + "." +
                      std::to_string(minor));
  }
  return n;
}

const Nvrtc& nvrtc() {
  static const Nvrtc opened = open();  // the next call tries again if it throws
  return opened;
}

// NVRTC leaves its thread in another locale.
class KeptLocale {
 public:
  KeptLocale() : before_(uselocale(nullptr)) {}
  ~KeptLocale() { uselocale(before_); }
  KeptLocale(const KeptLocale&) = delete;
  KeptLocale& operator=(const KeptLocale&) = delete;

 private:
  const locale_t before_;
};

struct OpenProgram {
  int (*const destroy)(Program*);
  Program program = nullptr;
  ~OpenProgram() { destroy(&program); }
};

std::string text(Program program, int (*size_of)(Program, size_t*), int (*get)(Program, char*)) {
  size_t size = 0;
  size_of(program, &size);
  std::string found(size, '\0');
  if (size > 0) get(program, &found[0]);
  return found.substr(0, found.find('\0'));
}

// A line without its comment, and with one space where it has several or tabs.
std::string stripped(const std::string& line) {
  std::istringstream words(line.substr(0, line.find("//")));
  std::string kept;
  for (std::string word; words >> word;) kept += (kept.empty() ? "" : " ") + word;
  return kept;
}

// A fifth of what NVRTC writes is indentation and comments.
std::string cleaned(const std::string& ptx) {
  std::istringstream lines(ptx);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    line = stripped(line);
    if (line.empty()) continue;
    kept += line.compare(0, 9, ".version ") == 0 ? std::string(".version ") + kVersion : line;
    kept += '\n';
  }
  return kept;
}

}  // namespace

Places places() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_set != nullptr) return *g_set;
  return {variable("_ECHO_PTX_PATH"), variable("_ECHO_NVRTC")};
}

void set_places(const Places& places) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  delete g_set;
  g_set = new Places(places);
}

std::string compiled(const std::string& family) {
  const Nvrtc& n = nvrtc();
  const KeptLocale locale;
  std::vector<const char*> names, texts;
  for (const Source& source : sources()) {
    names.push_back(source.name);
    texts.push_back(source.text);
  }
  const std::string code = "#define ECHO_FAMILY_" + family + " 1\n#include \"" + family + ".cuh\"\n";
  OpenProgram made{n.destroy};
  const int headers = static_cast<int>(names.size());
  if (n.create(&made.program, code.c_str(), family.c_str(), headers, texts.data(), names.data()) != 0) {
    throw DeviceError("NVRTC does not start");
  }
  if (n.compile(made.program, sizeof kOptions / sizeof *kOptions, kOptions) != 0) {
    throw DeviceError("NVRTC does not compile the CUDA kernels of " + family + ": " +
                      text(made.program, n.log_size, n.log));
  }
  return cleaned(text(made.program, n.ptx_size, n.ptx));
}

}  // namespace echo_cuda
