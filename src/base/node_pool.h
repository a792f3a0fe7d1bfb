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

namespace routecap {

class Nodes {
public:
    static constexpr size_t kBytes = 64;
    struct alignas(kBytes) Node {
        Node *next;
    };

    Nodes() = default;
    Nodes(const Nodes &) = delete;
    ~Nodes() {
        while (chunks_ != nullptr) delete[] std::exchange(chunks_, chunks_->next);
    }

    // How many more must be made, so that `count` can be taken.
    size_t missing(size_t count) const { return count - std::min(count, free_count_); }
    // Makes so many, or more: without the mutex. Throws without memory.
    struct Chunk {
        std::unique_ptr<Node[]> nodes;  // one more, for the list of chunks
        size_t count = 0;
    };
    static Chunk make(size_t count) {
        constexpr size_t kLeast = 256;
        const size_t most = std::max(count, kLeast);
        return {std::unique_ptr<Node[]>(new Node[most + 1]), most};
    }
    void add(Chunk chunk) noexcept {
        for (size_t i = 1; i <= chunk.count; i++) put(&chunk.nodes[i]);
        chunk.nodes[0].next = chunks_;
        chunks_ = chunk.nodes.release();
    }

    // There must be one. What `make` returns is made in the node.
    template <class Make>
    auto *take(Make make) noexcept {
        using T = decltype(make());
        static_assert(sizeof(T) <= kBytes && alignof(T) <= kBytes &&
                      std::is_trivially_destructible_v<T>);
        Node *node = std::exchange(free_, free_->next);
        free_count_--;
        return new (node) T(make());
    }
    // Gives a node back; returns the one behind it.
    template <class T>
    T *give(T *node) noexcept {
        T *next = node->next;
        put(new (node) Node);
        return next;
    }
    template <class T>
    void give_all(T *&list) noexcept {
        while (list != nullptr) list = give(list);
    }

private:
    void put(Node *node) noexcept {
        node->next = std::exchange(free_, node);
        free_count_++;
    }

    Node *free_ = nullptr;
    size_t free_count_ = 0;
    Node *chunks_ = nullptr;  // the first node of each
};
static_assert(sizeof(Nodes::Node) == Nodes::kBytes);

}  // namespace routecap
