// Which compilers built a library, by what they write into its section .comment.
#pragma once
#include <string>

namespace echo {

// Empty where only the wheels' compiler, GCC 4.8, did: the layouts in layout.h are its own. Else what is wrong.
std::string why_not_built_as_the_wheels(const char* path);

}  // namespace echo
