#include "prefix/publication.h"

#include "prefix/store.h"

namespace routecap {

Publication::Publication(std::shared_ptr<Store> store, const void *capturer, uint64_t first_row,
                         size_t blocks, uint64_t generation)
    : first(first_row),
      end(first_row + store->length(blocks)),
      store_(std::move(store)),
      capturer_(capturer),
      generation_(generation),
      blocks_(blocks),
      landed_(blocks) {
    Store::Publications one;
    one[0] = this;
    auto node = one.extract(0);  // made without the mutex
    const Lock lock(store_->mutex_);
    while (store_->publications_.contains(store_->next_publication_)) store_->next_publication_++;
    node.key() = number_ = store_->next_publication_++;
    store_->publications_.insert(std::move(node));
}

Publication::~Publication() {
    Store::Publications::node_type ours;  // freed without the mutex
    const Lock lock(store_->mutex_);
    for (BlockTable::Id id : blocks_) {  // that did not land
        if (id == 0) continue;
        store_->counted_.blocks_refused++;
        if (store_->table_.at(id).linked)
            store_->unlink(id, store_->table_.hash(store_->table_.key(id)));
        store_->table_.free(id);
    }
    ours = store_->publications_.extract(number_);
}

}  // namespace routecap
