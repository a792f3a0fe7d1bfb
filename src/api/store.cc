// Stores, and publishing and adopting.
#include <memory>

#include "api/call.h"
#include "base/structs.h"
#include "prefix/keys.h"
#include "prefix/store.h"

using namespace routecap;

namespace {

using routecap::with;

struct StoreHandle {
    StorePtr object;
    uint32_t process;
};
const StoreHandle *handle_of(const routecap_store *store) {
    return reinterpret_cast<const StoreHandle *>(store);
}

template <class Body>
int32_t with(const routecap_store *store, Body body,
             const char *call = __builtin_FUNCTION()) noexcept {
    if (store == nullptr) return report(ROUTECAP_ERR_ARGUMENT, "store is NULL");
    if (handle_of(store)->process != process_generation()) return forked();
    return guard([&] { return body(handle_of(store)->object); }, call);
}

// The same for functions that take keys.
template <class Body>
int32_t with_keys(const routecap_store *store, const void *keys, size_t count, Body body,
                  const char *call = __builtin_FUNCTION()) noexcept {
    const auto keyed = [&](const StorePtr &s) {
        if (keys == nullptr && count > 0) return report(ROUTECAP_ERR_ARGUMENT, "keys is NULL");
        if (int32_t status = check_count(count, s->config().key_bytes, "keys"); status < 0)
            return status;
        return body(*s, Keys{static_cast<const uint8_t *>(keys), count, s->config().key_bytes});
    };
    return with(store, keyed, call);
}

// The same for functions that also take a capturer. Refusals of the store are logged after the
// work, when no lock is held.
template <class Body>
int32_t with(const routecap_capturer *capturer, const routecap_store *store, Body body,
             const char *call = __builtin_FUNCTION()) noexcept {
    const auto with_both = [&](Capturer &c) {
        const auto and_told = [&](const StorePtr &s) {
            const int32_t status = body(c, s);
            s->tell_refusals();
            return status;
        };
        return with(store, and_told, nullptr);
    };
    return with(capturer, with_both, call);
}

}  // namespace

routecap_status routecap_store_config_init(routecap_store_config *config, size_t struct_size) {
    return init_struct(config, struct_size, routecap_store_config{}, "config");
}

routecap_status routecap_store_create(const routecap_store_config *config,
                                      const routecap_config *shape, routecap_store **store) {
    if (int32_t s = clear(store, "store"); s < 0) return s;
    return guard([&] {
        StoreConfig c;
        if (int32_t s = read_store_config(config, shape, c); s < 0) return s;
        auto handle = std::make_unique<StoreHandle>();
        handle->process = process_generation();
        if (int32_t s = Store::create(std::move(c), handle->object); s < 0) return s;
        handle->object->log_creation();
        *store = reinterpret_cast<routecap_store *>(handle.release());
        return ROUTECAP_OK;
    });
}

void routecap_store_free(routecap_store *store) {
    if (store == nullptr || handle_of(store)->process != process_generation()) return;
    handle_of(store)->object->tell_refusals();
    delete handle_of(store);
}

routecap_status routecap_store_stats(const routecap_store *store, routecap_store_counts *counts) {
    return with(store, [&](const StorePtr &s) {
        if (int32_t status = check_output(counts, "counts"); status < 0) return status;
        routecap_store_counts c{};
        s->counts(c);
        write_struct(counts, c);
        return ROUTECAP_OK;
    });
}

routecap_status routecap_store_advance(routecap_store *store, uint64_t generation) {
    return with(store, [&](const StorePtr &s) { return s->advance(generation); });
}

routecap_status routecap_request_publish(routecap_capturer *capturer, routecap_request request,
                                         routecap_store *store, uint64_t first, const void *keys,
                                         size_t count, uint64_t generation) {
    return with(capturer, store, [&](Capturer &c, const StorePtr &s) {
        routecap_publish_item item{.request = request,
                                   .first = first,
                                   .keys = keys,
                                   .count = count,
                                   .status = 0,
                                   .reserved = 0};
        return c.requests.publish(s, item, generation);
    });
}

routecap_status routecap_request_adopt(routecap_capturer *capturer, routecap_request request,
                                       routecap_store *store, uint64_t first, const void *keys,
                                       size_t count, uint64_t generation,
                                       routecap_adoption *adoption) {
    return with(capturer, store, [&](Capturer &c, const StorePtr &s) {
        if (adoption != nullptr)
            if (int32_t status = check_output(adoption, "adoption"); status < 0) return status;
        routecap_adopt_item item{};
        item.request = request, item.first = first, item.keys = keys, item.count = count;
        const int32_t status = c.requests.adopt(s, item, generation);
        if (status == ROUTECAP_OK && adoption != nullptr)
            write_struct(adoption, routecap_adoption{.struct_size = 0,
                                                     .reserved = 0,
                                                     .rows = item.rows,
                                                     .found = item.found,
                                                     .evicted = item.evicted,
                                                     .not_published = item.not_published,
                                                     .stale = item.stale});
        return status;
    });
}

routecap_status routecap_request_publish_batch(routecap_capturer *capturer, routecap_store *store,
                                               routecap_publish_item *items, size_t item_size,
                                               size_t count, uint64_t generation) {
    return with(capturer, store, [&](Capturer &c, const StorePtr &s) {
        return c.requests.publish_batch(s, items, item_size, count, generation);
    });
}

routecap_status routecap_request_adopt_batch(routecap_capturer *capturer, routecap_store *store,
                                             routecap_adopt_item *items, size_t item_size,
                                             size_t count, uint64_t generation) {
    return with(capturer, store, [&](Capturer &c, const StorePtr &s) {
        return c.requests.adopt_batch(s, items, item_size, count, generation);
    });
}

routecap_status routecap_key_chain(const void *seed, size_t seed_bytes, const int32_t *tokens,
                                   size_t count, uint32_t block_rows, uint32_t key_bytes,
                                   void *keys, size_t keys_bytes) {
    return key_chain(seed, seed_bytes, tokens, count, block_rows, key_bytes, keys, keys_bytes);
}

routecap_status routecap_store_contains(routecap_store *store, const void *keys, size_t count,
                                        uint64_t generation, routecap_reason *reasons,
                                        uint64_t *leading) {
    return with_keys(store, keys, count,
                     [&](Store &s, Keys k) { return s.contains(k, generation, reasons, leading); });
}

routecap_status routecap_store_retain(routecap_store *store, const void *keys, size_t count,
                                      routecap_reason *reasons) {
    return with_keys(store, keys, count, [&](Store &s, Keys k) { return s.retain(k, reasons); });
}

routecap_status routecap_store_release(routecap_store *store, const void *keys, size_t count) {
    return with_keys(store, keys, count, [&](Store &s, Keys k) { return s.release(k); });
}

routecap_status routecap_store_evict(routecap_store *store, const void *keys, size_t count,
                                     uint64_t *evicted) {
    return with_keys(store, keys, count, [&](Store &s, Keys k) { return s.evict(k, evicted); });
}
