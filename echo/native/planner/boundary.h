// No exception may leave a C function: its caller is Python, where it would end the process.
#pragma once
#include <exception>

namespace echo {

void set_error(const char* text);  // of this thread; see echo_planner_error

// What the action returns, or `failed` where it throws, as for want of memory.
template <typename Result, typename Action>
Result guarded(Result failed, const Action& action) {
  try {
    return action();
  } catch (const std::exception& error) {
    set_error(error.what());
  } catch (...) {
    set_error("an unknown error");
  }
  return failed;
}

}  // namespace echo
