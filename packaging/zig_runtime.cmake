# Included by every project() with the toolchain of zig.cmake. zig links its runtime by itself,
# after libc. What CMake saw of that it would link again, before libc: memcpy and the like would be
# the runtime's own, which know no processor newer than 2003, and files would name zig's cache.
set(CMAKE_C_IMPLICIT_LINK_LIBRARIES c)
set(CMAKE_CXX_IMPLICIT_LINK_LIBRARIES c)
