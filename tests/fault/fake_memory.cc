// The fake driver's memory: host memory of which every range is known, and the calls that copy and
// fill it.
#include <cstring>
#include <new>

#include "fake_state.h"

namespace fake {
namespace {

constexpr std::align_val_t kAlignment{256};
constexpr int kFresh = 0xcd;  // what new memory holds

void *pointer(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

CUresult allocate(State &s, size_t bytes, bool host, void **out) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = nullptr;
    if (bytes == 0) return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    void *memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memset(memory, kFresh, bytes);
    s.allocations[reinterpret_cast<uintptr_t>(memory)] = {bytes, host, current()->device,
                                                          current()};
    *out = memory;
    return CUDA_SUCCESS;
}

// Of device memory it waits, as the driver does, for all work that was enqueued in the context.
CUresult release(State &s, Lock &lock, void *memory, bool host, const char *name) {
    if (memory == nullptr) return CUDA_SUCCESS;
    auto it = s.allocations.find(reinterpret_cast<uintptr_t>(memory));
    if (it == s.allocations.end() || it->second.host != host) {
        s.violation("%s: %p is no allocation", name, memory);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!host)
        if (const CUresult r = s.wait(lock, s.tails(*it->second.context)); r != CUDA_SUCCESS)
            return r;
    it = s.allocations.find(reinterpret_cast<uintptr_t>(memory));
    if (it == s.allocations.end()) {
        s.violation("%s: %p was freed meanwhile", name, memory);
        return CUDA_ERROR_INVALID_VALUE;
    }
    s.allocations.erase(it);
    ::operator delete(memory, kAlignment);
    return CUDA_SUCCESS;
}

CUresult MemAlloc(CUdeviceptr *out, size_t bytes) {
    return call({"cuMemAlloc", kContext | kUnsafe}, [&](State &s, Lock &) {
        void *memory = nullptr;
        const CUresult r = allocate(s, bytes, false, &memory);
        if (r == CUDA_SUCCESS) *out = reinterpret_cast<CUdeviceptr>(memory);
        return r;
    });
}

CUresult MemFree(CUdeviceptr address) {
    return call({"cuMemFree", kUnsafe}, [&](State &s, Lock &lock) {
        return release(s, lock, pointer(address), false, "cuMemFree");
    });
}

CUresult MemHostAlloc(void **out, size_t bytes, unsigned flags) {
    return call({"cuMemHostAlloc", kContext | kUnsafe}, [&](State &s, Lock &) {
        constexpr unsigned kKnown =
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
        return allocate(s, bytes, true, out);
    });
}

CUresult MemFreeHost(void *memory) {
    return call({"cuMemFreeHost", kUnsafe}, [&](State &s, Lock &lock) {
        return release(s, lock, memory, true, "cuMemFreeHost");
    });
}

// Writes one attribute. false: it has none, and what the driver writes then, if anything, stands
// there.
bool write_attribute(const Allocation *a, uintptr_t base, CUpointer_attribute which,
                     CUdeviceptr address, void *data, bool &exists) {
    exists = true;
    const auto write = [data](const auto &value) { std::memcpy(data, &value, sizeof value); };
    switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            write(a == nullptr ? nullptr : a->context);
            return a != nullptr;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            write(a == nullptr ? 0u : a->host ? 1u : 2u);
            return a != nullptr;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            write(a == nullptr ? 0 : address);
            return a != nullptr;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER: {
            const bool device_only = a != nullptr && !a->host && !a->managed;
            write(device_only ? 0 : address);
            return a != nullptr && !device_only;
        }
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            write(a != nullptr && a->managed ? 1u : 0u);
            return a != nullptr;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            write(a == nullptr ? CU_DEVICE_INVALID : a->device);
            return a != nullptr;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            if (a != nullptr) write(base);
            return a != nullptr;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            if (a != nullptr) write(a->bytes);
            return a != nullptr;
        default: exists = false; return false;
    }
}

// Of several attributes those that a pointer does not have are no error.
CUresult PointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
                              CUdeviceptr address) {
    return call({"cuPointerGetAttributes", kWhenLost}, [&](State &s, Lock &) {
        if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
        uintptr_t base = 0;
        const Allocation *a = s.find(pointer(address), 1, &base);
        for (unsigned i = 0; i < count; i++) {
            bool exists;
            write_attribute(a, base, attributes[i], address, data[i], exists);
            if (!exists) return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
    });
}

// Enqueues work on memory after a look at the memory as it is now.
CUresult submit(State &s, CUstream stream, Work work, const char *call) {
    Stream *to;
    if (const CUresult r = s.find_stream(stream, to); r != CUDA_SUCCESS) return r;
    if (!s.check(work, call)) return CUDA_ERROR_INVALID_VALUE;
    return s.submit(*to, std::move(work), call);
}

Work copy(void *to, const void *from, size_t bytes) {
    Work work;
    work.kind = Work::Kind::kCopy;
    work.to = to;
    work.from = from;
    work.bytes = bytes;
    return work;
}

CUresult MemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return call({"cuMemcpyAsync", kNothing, stream}, [&](State &s, Lock &) {
        return submit(s, stream, copy(pointer(to), pointer(from), bytes), "cuMemcpyAsync");
    });
}

// The host's side of a copy may be memory that the driver does not know. Where it begins decides:
// an allocator may place it right behind an allocation.
bool is_known(const State &s, const void *host) { return s.find(host, 1) != nullptr; }

// Memory that the driver does not know is copied before the call returns, as far as it is read.
Work from_host(const State &s, CUdeviceptr to, const void *from, size_t bytes) {
    Work work = copy(pointer(to), from, bytes);
    if (bytes == 0 || is_known(s, from)) return work;
    auto data = std::make_shared<std::byte[]>(bytes);
    std::memcpy(data.get(), from, bytes);
    work.from = data.get();
    work.data = std::move(data);
    work.any_from = true;
    return work;
}

CUresult MemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return call({"cuMemcpyHtoDAsync", kNothing, stream}, [&](State &s, Lock &) {
        return submit(s, stream, from_host(s, to, from, bytes), "cuMemcpyHtoDAsync");
    });
}

CUresult MemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return call({"cuMemcpyDtoHAsync", kNothing, stream}, [&](State &s, Lock &) {
        Work work = copy(to, pointer(from), bytes);
        work.any_to = !is_known(s, to);
        return submit(s, stream, std::move(work), "cuMemcpyDtoHAsync");
    });
}

// On the legacy stream, and waits for it.
CUresult copy_now(State &s, Lock &lock, Work work, const char *call) {
    if (const CUresult r = submit(s, nullptr, std::move(work), call); r != CUDA_SUCCESS) return r;
    return s.wait(lock, {current()->legacy->tail});
}

CUresult MemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
    return call({"cuMemcpyHtoD", kContext, nullptr}, [&](State &s, Lock &lock) {
        return copy_now(s, lock, from_host(s, to, from, bytes), "cuMemcpyHtoD");
    });
}

CUresult set(CUdeviceptr to, uint64_t value, uint32_t width, size_t count, CUstream stream,
             const char *name) {
    return call({name, kNothing, stream}, [&](State &s, Lock &) {
        if (to % width != 0) return CUDA_ERROR_INVALID_VALUE;
        Work work;
        work.kind = Work::Kind::kSet;
        work.to = pointer(to);
        work.bytes = count * width;
        work.value = value;
        work.width = width;
        return submit(s, stream, std::move(work), name);
    });
}

CUresult MemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return set(to, value, 1, count, stream, "cuMemsetD8Async");
}

CUresult MemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return set(to, value, 4, count, stream, "cuMemsetD32Async");
}

CUresult StreamWriteValue64(CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned flags) {
    return call({"cuStreamWriteValue64", kNothing, stream}, [&](State &s, Lock &) {
        if (flags != CU_STREAM_WRITE_VALUE_DEFAULT &&
            flags != CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
            return CUDA_ERROR_INVALID_VALUE;
        if (to % sizeof(uint64_t) != 0) return CUDA_ERROR_INVALID_VALUE;
        Work work;
        work.kind = Work::Kind::kWrite;
        work.to = pointer(to);
        work.bytes = sizeof(uint64_t);
        work.value = value;
        return submit(s, stream, std::move(work), "cuStreamWriteValue64");
    });
}

// It waits for all work that was given before it, which must bring the value.
CUresult StreamWaitValue64(CUstream handle, CUdeviceptr from, cuuint64_t value, unsigned flags) {
    return call({"cuStreamWaitValue64", kNothing, handle}, [&](State &s, Lock &) {
        Stream *stream;
        if (const CUresult r = s.find_stream(handle, stream); r != CUDA_SUCCESS) return r;
        if (flags != CU_STREAM_WAIT_VALUE_GEQ || from % sizeof(uint64_t) != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult r = s.check_legacy(*stream, "cuStreamWaitValue64"); r != CUDA_SUCCESS)
            return r;
        if (stream->capture != nullptr) {
            s.invalidate(*stream->capture, "cuStreamWaitValue64");
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        Work work;
        work.kind = Work::Kind::kWait;
        work.from = pointer(from);
        work.bytes = sizeof(uint64_t);
        work.value = value;
        s.enqueue(*stream, std::move(work), s.tails(*stream->context));
        return CUDA_SUCCESS;
    });
}

}  // namespace

// The allocation in which `bytes` bytes at p lie.
const Allocation *State::find(const void *p, size_t bytes, uintptr_t *base) const {
    const auto address = reinterpret_cast<uintptr_t>(p);
    auto it = allocations.upper_bound(address);
    if (it == allocations.begin()) return nullptr;
    --it;
    const size_t before = address - it->first;
    if (before > it->second.bytes || bytes > it->second.bytes - before) return nullptr;
    if (base != nullptr) *base = it->first;
    return &it->second;
}

// Whether the memory that work touches is there.
bool State::check(const Work &work, const char *when) {
    const auto known = [&](const void *p, bool any) {
        if (p == nullptr || (!any && find(p, work.bytes) == nullptr)) {
            violation("%s: %zu bytes at %p are in no allocation", when, work.bytes, p);
            return false;
        }
        return true;
    };
    switch (work.kind) {
        case Work::Kind::kCopy:
            return work.bytes == 0 ||
                   (known(work.to, work.any_to) && known(work.from, work.any_from));
        case Work::Kind::kSet:
        case Work::Kind::kWrite: return work.bytes == 0 || known(work.to, false);
        case Work::Kind::kWait: {
            if (!known(work.from, false)) return false;
            const auto *word = static_cast<const uint64_t *>(work.from);
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= work.value) return true;
            violation("%s: nothing brings the value for which a stream waits", when);
            return false;
        }
        default: return true;
    }
}

void State::free_memory_of(const Context *context) {
    for (auto it = allocations.begin(); it != allocations.end();) {
        if (it->second.context == context) {
            ::operator delete(pointer(it->first), kAlignment);
            it = allocations.erase(it);
        } else {
            ++it;
        }
    }
}

void add_memory_functions(std::vector<Function> &to) {
    FAKE_ADD(to, MemAlloc, 3020, MemAlloc);
    FAKE_ADD(to, MemFree, 3020, MemFree);
    FAKE_ADD(to, MemHostAlloc, 2020, MemHostAlloc);
    FAKE_ADD(to, MemFreeHost, 2000, MemFreeHost);
    FAKE_ADD(to, PointerGetAttributes, 7000, PointerGetAttributes);
    FAKE_ADD(to, MemcpyAsync, 4000, MemcpyAsync);
    FAKE_ADD(to, MemcpyHtoDAsync, 3020, MemcpyHtoDAsync);
    FAKE_ADD(to, MemcpyDtoHAsync, 3020, MemcpyDtoHAsync);
    FAKE_ADD(to, MemcpyHtoD, 3020, MemcpyHtoD);
    FAKE_ADD(to, MemsetD8Async, 3020, MemsetD8Async);
    FAKE_ADD(to, MemsetD32Async, 3020, MemsetD32Async);
    FAKE_ADD(to, StreamWaitValue64, 11070, StreamWaitValue64);
    FAKE_ADD(to, StreamWriteValue64, 11070, StreamWriteValue64);
}

}  // namespace fake
