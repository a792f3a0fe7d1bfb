// Whether this process was forked since an object was made: its threads and the holders of its
// locks stayed behind in the parent.
#pragma once

#include <cstdint>

namespace routecap {

// Changes in a child of fork(). Cheap. The first call starts watching.
uint32_t process_generation() noexcept;

}  // namespace routecap
