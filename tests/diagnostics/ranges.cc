// What a profiler sees of a step; run with the profiler of profiler.cc.
#include <dlfcn.h>
#include <rig.h>

#include <cstdlib>
#include <string>

using namespace rig;

TEST(Profiler, sees_the_parts_of_a_step) {
    const char *const path = std::getenv("NVTX_INJECTION64_PATH");
    ASSERT_NE(path, nullptr) << "needs a profiler";
    Rig rig({.held = true});
    rig.land(rig.step({{rig.open(), {1, 0, 4}}}));
    void *const profiler = dlopen(path, RTLD_NOW);
    ASSERT_NE(profiler, nullptr) << dlerror();
    const auto saw = reinterpret_cast<const char *(*)()>(dlsym(profiler, "profiler_saw"));
    EXPECT_STREQ(saw(), "begin\nsnapshot\nissue\n>copy\nfile\n");
}
