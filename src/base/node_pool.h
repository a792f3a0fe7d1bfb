// Memory for what the engine's thread notes of requests: nodes of one cache line each.
//
// They are made before the capturer's mutex is taken and handed out while it is held, so that
// nothing is allocated under it. Lists of them are singly linked through a member `next`.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace routecap {

class Nodes {
public:
    static constexpr size_t kBytes = 64;
    static constexpr size_t kChunk = 256;  // nodes that are made at a time, at least

    struct alignas(kBytes) Node {
        Node *next;
    };
    using Chunk = std::unique_ptr<Node[]>;

    // How many can be taken.
    size_t free() const { return free_count_; }
    // Makes what is missing for `count`: without the mutex. Throws without memory.
    struct More {
        Chunk nodes;
        size_t count = 0;
        std::vector<Chunk> room;  // for the list of chunks
    };
    static More make(size_t count, size_t chunks) {
        More more;
        more.count = count < kChunk ? kChunk : count;
        more.nodes.reset(new Node[more.count]);
        more.room.reserve(2 * chunks + 4);
        return more;
    }
    size_t chunks() const { return chunks_.size(); }
    // With the mutex held; `more` was made for as many chunks as there are, or nothing happens.
    void add(More &more) noexcept {
        if (more.room.capacity() <= chunks_.size()) return;
        for (Chunk &chunk : chunks_) more.room.push_back(std::move(chunk));
        more.room.push_back(std::move(more.nodes));
        chunks_.swap(more.room);
        Node *made = chunks_.back().get();
        for (size_t i = 0; i < more.count; i++) put(&made[i]);
    }

    // There must be one.
    template <class T>
    T *take(const T &value) noexcept {
        static_assert(sizeof(T) <= kBytes && alignof(T) <= kBytes &&
                      std::is_trivially_destructible_v<T>);
        Node *node = std::exchange(free_, free_->next);
        free_count_--;
        return new (static_cast<void *>(node)) T(value);
    }
    // Gives a node back; returns the one behind it.
    template <class T>
    T *give(T *node) noexcept {
        T *next = node->next;
        put(new (static_cast<void *>(node)) Node);
        return next;
    }
    template <class T>
    void give_all(T *&list) noexcept {
        while (list != nullptr) list = give(list);
    }
    // Starts fetching the node that will be taken next.
    void prefetch() const { __builtin_prefetch(free_, 1); }

private:
    void put(Node *node) noexcept {
        node->next = std::exchange(free_, node);
        free_count_++;
    }

    Node *free_ = nullptr;
    size_t free_count_ = 0;
    std::vector<Chunk> chunks_;
};
static_assert(sizeof(Nodes::Node) == Nodes::kBytes);

}  // namespace routecap
