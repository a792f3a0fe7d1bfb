# Toolchain: zig's clang, for glibc 2.28 and newer of either processor.
#
#   ROUTECAP_ZIG              the program zig
#   ROUTECAP_PROCESSOR        x86_64 or aarch64
set(CMAKE_PROJECT_INCLUDE ${CMAKE_CURRENT_LIST_DIR}/zig_runtime.cmake)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ROUTECAP_ZIG ROUTECAP_PROCESSOR)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${ROUTECAP_PROCESSOR})
set(CMAKE_C_COMPILER ${ROUTECAP_ZIG} cc -target ${ROUTECAP_PROCESSOR}-linux-gnu.2.28)
set(CMAKE_CXX_COMPILER ${ROUTECAP_ZIG} c++ -target ${ROUTECAP_PROCESSOR}-linux-gnu.2.28)
set(CMAKE_C_FLAGS_INIT -fomit-frame-pointer)
set(CMAKE_CXX_FLAGS_INIT -fomit-frame-pointer)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
# Programs are the machine's. zig brings the system's headers and libraries.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
