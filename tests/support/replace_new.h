// Replaces operator new and delete in the program whose one source includes this, after it has
// defined
//     bool may_allocate();  // called for each allocation; false: it fails
#pragma once

#include <cstdlib>
#include <new>

namespace rig {

inline void *allocate(size_t bytes, size_t alignment) {
    return may_allocate()
               ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
               : nullptr;
}
inline void *allocate_or_throw(size_t bytes, size_t alignment) {
    void *memory = allocate(bytes, alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
// Or gcc takes what it inlined for a mistake.
[[gnu::noinline]] inline void give_back(void *memory) { std::free(memory); }

}  // namespace rig

void *operator new(size_t n) { return rig::allocate_or_throw(n, 16); }
void *operator new[](size_t n) { return rig::allocate_or_throw(n, 16); }
void *operator new(size_t n, std::align_val_t a) {
    return rig::allocate_or_throw(n, static_cast<size_t>(a));
}
void *operator new[](size_t n, std::align_val_t a) {
    return rig::allocate_or_throw(n, static_cast<size_t>(a));
}
void *operator new(size_t n, const std::nothrow_t &) noexcept { return rig::allocate(n, 16); }
void *operator new[](size_t n, const std::nothrow_t &) noexcept { return rig::allocate(n, 16); }
void *operator new(size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
    return rig::allocate(n, static_cast<size_t>(a));
}
void *operator new[](size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
    return rig::allocate(n, static_cast<size_t>(a));
}
void operator delete(void *p) noexcept { rig::give_back(p); }
void operator delete[](void *p) noexcept { rig::give_back(p); }
void operator delete(void *p, size_t) noexcept { rig::give_back(p); }
void operator delete[](void *p, size_t) noexcept { rig::give_back(p); }
void operator delete(void *p, std::align_val_t) noexcept { rig::give_back(p); }
void operator delete[](void *p, std::align_val_t) noexcept { rig::give_back(p); }
void operator delete(void *p, size_t, std::align_val_t) noexcept { rig::give_back(p); }
void operator delete[](void *p, size_t, std::align_val_t) noexcept { rig::give_back(p); }
