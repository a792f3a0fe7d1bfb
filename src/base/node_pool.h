// Memory for what the engine's thread notes of requests: nodes of one cache line each.
//
// They are made before the registry's mutex is taken and handed out while it is held, so that
// nothing is allocated under it. Lists of them are singly linked through a member `next`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace routecap {

class Nodes {
public:
    static constexpr size_t kBytes = 64;
    static constexpr size_t kChunk = 256;  // nodes that are made at a time, at least

    struct alignas(kBytes) Node {
        unsigned char memory[kBytes];
    };
    using Chunk = std::unique_ptr<Node[]>;

    // How many can be taken.
    size_t free() const { return free_count_; }
    // The size of the pool now, to be passed to make().
    struct Size {
        size_t chunks = 0, nodes = 0;
    };
    Size size() const { return {chunks_.size(), made_}; }
    // Allocates `count` more nodes, and larger lists for them. Call it without the mutex. Throws if
    // there is no memory.
    struct More {
        Chunk nodes;
        size_t count = 0;
        std::vector<Chunk> chunks;  // an empty list with room for all chunks
        std::vector<void *> free;
    };
    static More make(size_t count, Size now) {
        More more;
        more.count = count < kChunk ? kChunk : count;
        more.nodes.reset(new Node[more.count]);
        more.chunks.reserve(2 * now.chunks + 4);
        more.free.resize(now.nodes + more.count);
        return more;
    }
    // Adds them, with the mutex held. If another thread has enlarged the pool since size(), the
    // lists may be too small; then it adds nothing, and the caller tries again.
    void add(More &more) noexcept {
        if (more.chunks.capacity() <= chunks_.size() || more.free.size() < made_ + more.count)
            return;
        for (Chunk &chunk : chunks_) more.chunks.push_back(std::move(chunk));
        more.chunks.push_back(std::move(more.nodes));
        chunks_.swap(more.chunks);
        std::copy_n(free_.begin(), free_count_, more.free.begin());
        free_.swap(more.free);
        made_ += more.count;
        Node *made = chunks_.back().get();
        for (size_t i = 0; i < more.count; i++) free_[free_count_++] = &made[i];
    }

    // Takes a node; free() must not be 0. The object is constructed in the node itself. If it were
    // constructed elsewhere and copied, the copy would load words that were just stored in pieces,
    // which stalls the processor.
    template <class Make>
    auto *take(Make make) noexcept {
        using T = decltype(make());
        static_assert(sizeof(T) <= kBytes && alignof(T) <= kBytes &&
                      std::is_trivially_destructible_v<T>);
        return new (free_[--free_count_]) T(make());
    }
    // Gives a node back, and returns the next one of its list.
    template <class T>
    T *give(T *node) noexcept {
        T *next = node->next;
        free_[free_count_++] = node;
        return next;
    }
    template <class T>
    void give_all(T *&list) noexcept {
        while (list != nullptr) list = give(list);
    }
    // Starts fetching the node that will be taken after the next `ahead`.
    void prefetch(size_t ahead) const {
        if (ahead < free_count_) __builtin_prefetch(free_[free_count_ - 1 - ahead], 1);
    }

private:
    // A stack of addresses and not a list through the nodes, so that a caller who takes many can
    // prefetch the ones to come.
    std::vector<void *> free_;  // the first free_count_; there is room for all
    size_t free_count_ = 0;
    size_t made_ = 0;
    std::vector<Chunk> chunks_;
};
static_assert(sizeof(Nodes::Node) == Nodes::kBytes);

}  // namespace routecap
