// Versioned structs at the boundary: callers may have been compiled with an older or a newer header
// than this library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

#include "base/status.h"
#include "routecap.h"

namespace routecap {

// No version of a struct will be larger. A larger size was never set by the caller, and believing
// it would write beyond the caller's memory.
constexpr size_t kLargestStruct = 65536;

inline int32_t check_size(size_t size, size_t oldest, const char *name) {
    if (size < oldest)
        return report(ROUTECAP_ERR_STRUCT_SIZE, "%s: %zu bytes are fewer than %zu", name, size,
                      oldest);
    if (size > kLargestStruct)
        return report(ROUTECAP_ERR_STRUCT_SIZE, "%s: %zu bytes are more than any version has", name,
                      size);
    return ROUTECAP_OK;
}

// Copies a caller's struct of `size` bytes into ours. Bytes that this library does not know must be
// 0. No struct has grown yet, so a caller's has all that ours has.
template <class T>
int32_t read_struct(T &ours, const void *theirs, size_t size, const char *name) {
    if (theirs == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name);
    if (int32_t s = check_size(size, sizeof(T), name); s < 0) return s;
    const auto *bytes = static_cast<const unsigned char *>(theirs);
    for (size_t i = sizeof(T); i < size; i++)
        if (bytes[i] != 0)
            return report(ROUTECAP_ERR_STRUCT_SIZE,
                          "%s: byte %zu is set and lies beyond the %zu bytes this library knows",
                          name, i, sizeof(T));
    std::memcpy(&ours, theirs, sizeof(T));
    return ROUTECAP_OK;
}

// The same for a struct that begins with its own size.
template <class T>
int32_t read_struct(T &ours, const T *theirs, const char *name) {
    if (theirs == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name);
    return read_struct(ours, theirs, theirs->struct_size, name);
}

// Fills `size` bytes of a caller's struct: with ours, and with 0 beyond it.
template <class T>
void write_bytes(void *theirs, size_t size, const T &ours) {
    std::memcpy(theirs, &ours, std::min(size, sizeof(T)));
    if (size > sizeof(T))
        std::memset(static_cast<unsigned char *>(theirs) + sizeof(T), 0, size - sizeof(T));
}

// Fills a struct whose size the caller passes as an argument, and sets its struct_size.
template <class T>
int32_t init_struct(T *theirs, size_t size, const T &ours, const char *name) {
    if (theirs == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name);
    if (int32_t s = check_size(size, sizeof(T), name); s < 0) return s;
    write_bytes(theirs, size, ours);
    theirs->struct_size = static_cast<uint32_t>(size);
    return ROUTECAP_OK;
}

template <class T>
int32_t check_output(const T *theirs, const char *name) {
    if (theirs == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name);
    return check_size(theirs->struct_size, sizeof(T), name);
}

// The same where NULL says that it is not wanted.
template <class T>
int32_t check_wanted(const T *theirs, const char *name) {
    return theirs == nullptr ? ROUTECAP_OK : check_output(theirs, name);
}

template <class T>
void write_struct(T *theirs, T ours) {
    ours.struct_size = theirs->struct_size;
    write_bytes(theirs, theirs->struct_size, ours);
}

// Whether an array of this many elements fits into the address space. If it does not, the count is
// wrong, and no element may be read or written.
constexpr bool can_be(size_t count, size_t element) {
    return element == 0 || count <= PTRDIFF_MAX / element;
}
inline int32_t check_count(size_t count, size_t element, const char *name) {
    if (can_be(count, element)) return ROUTECAP_OK;
    return report(ROUTECAP_ERR_ARGUMENT, "%s: %zu elements of %zu bytes overflow", name, count,
                  element);
}

// Checks an array argument: its elements may be smaller or larger than ours, as structs may.
inline int32_t check_array(const void *array, size_t count, size_t element, size_t oldest,
                           const char *name) {
    if (count == 0) return ROUTECAP_OK;
    if (array == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "%s is NULL", name);
    if (int32_t s = check_size(element, oldest, name); s < 0) return s;
    return check_count(count, element, name);
}

// The same for an array whose elements the caller fills. Bytes of an element that this library does
// not know must be 0.
template <class T>
int32_t check_items(const T *array, size_t count, size_t element, const char *name) {
    if (int32_t s = check_array(array, count, element, sizeof(T), name); s < 0) return s;
    T known;
    for (size_t i = 0; element > sizeof(T) && i < count; i++)
        if (int32_t s = read_struct(known, reinterpret_cast<const char *>(array) + i * element,
                                    element, name);
            s < 0)
            return s;
    return ROUTECAP_OK;
}

// For an item whose reserved field is set.
inline int32_t refuse_reserved(int32_t value) {
    return report(ROUTECAP_ERR_ARGUMENT, "reserved is %d", value);
}

// Element i of such an array.
template <class T>
T &at(T *array, size_t element, size_t i) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return *reinterpret_cast<T *>(reinterpret_cast<Byte *>(array) + i * element);
}

// Calls one(item) for each item of a batch, and keeps what it returns as the item's status.
template <class Item, class One>
int32_t for_each_item(Item *items, size_t item_size, size_t count, One one) {
    if (int32_t s = check_items(items, count, item_size, "items"); s < 0) return s;
    bool ok = true;
    for (size_t i = 0; i < count; i++) {
        Item &item = at(items, item_size, i);
        try {
            item.status = item.reserved == 0 ? one(item) : refuse_reserved(item.reserved);
        } catch (const std::bad_alloc &) {
            item.status = ROUTECAP_ERR_NO_MEMORY;
        }
        ok &= item.status == ROUTECAP_OK;
    }
    return ok ? ROUTECAP_OK
              : report(ROUTECAP_PARTIAL, "not every item is OK: see the status of each");
}

// Fills an array of the caller with ours, as far as there is room, and says how many there are.
template <class Ours, class T>
int32_t give_out(const Ours &ours, T *theirs, size_t element, size_t capacity, uint64_t *count,
                 const char *name) {
    if (count == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "count is NULL");
    if (int32_t s = check_array(theirs, capacity, element, sizeof(T), name); s < 0) return s;
    for (size_t i = 0; i < std::min(capacity, ours.size()); i++)
        write_bytes(&at(theirs, element, i), element, ours[i]);
    *count = ours.size();
    return ROUTECAP_OK;
}

}  // namespace routecap
