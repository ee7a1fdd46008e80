#include "level.h"

#include <strings.h>

#include <initializer_list>
#include <string>

#include "debug.h"

namespace echo {
namespace kernels {
namespace {

Level of_processor() {
#ifdef ECHO_HAS_LEVELS
  __builtin_cpu_init();  // this may run before the constructors of the compiler's library
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx512) return Level::kAvx512;
  if (avx2) return Level::kAvx2;
#endif
  return Level::kPortable;
}

Level chosen() {
  const Level most = of_processor();
  const std::string asked = debug_value("level");
  for (const Level level : {Level::kPortable, Level::kAvx2}) {
    if (level < most && strcasecmp(asked.c_str(), level_name(level)) == 0) return level;
  }
  return most;
}

}  // namespace

Level level() {
  static const Level found = chosen();
  return found;
}

const char* level_name(Level level) {
  switch (level) {
    case Level::kAvx512: return "avx512";
    case Level::kAvx2: return "avx2";
    default: return "portable";
  }
}

}  // namespace kernels
}  // namespace echo
