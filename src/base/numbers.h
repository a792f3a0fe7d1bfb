// Numbers of 64 bits that functions take beside positions and counts, as types of their own:
// none can stand where another is meant. They have an order, and nothing is computed of them. What
// callers see is plain, and so are positions and counts: nearly every line adds one to the other.
#pragma once

#include <cstdint>

namespace routecap {

// Of a step, by order of issue from 1 on: routecap_step.
enum class Ticket : uint64_t { none };
// Of a row: what its step was issued with.
enum class Tag : uint64_t { none };

constexpr uint64_t number(Ticket ticket) { return static_cast<uint64_t>(ticket); }
constexpr uint64_t number(Tag tag) { return static_cast<uint64_t>(tag); }

}  // namespace routecap
