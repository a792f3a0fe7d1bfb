"""Attention and trees of drafts in PyTorch, in the place of SGLang's kernels for a CPU.

Names and arguments are those of SGLang's calls. What is written is an argument, as there.
"""

import ctypes

import torch

# ---- Attention


def _attend(queries, keys, values, scale, mask):
    """[rows, heads, width] of a sequence; mask: [rows, keys], or None if all are seen."""
    return torch.nn.functional.scaled_dot_product_attention(
        *(each.movedim(0, 1).unsqueeze(0) for each in (queries, keys, values)),
        attn_mask=mask,
        scale=scale,
        enable_gqa=True,
    )[0].movedim(0, 1)


def decode_attention_cpu(
    query, key_buffer, value_buffer, k_scale, v_scale, output, key, value, slots, logits,
    req_to_token, requests, lengths, scale, *unused,
):  # fmt: skip
    if key is not None:
        key_buffer[slots] = key.view(-1, *key_buffer.shape[1:])
        value_buffer[slots] = value.view(-1, *value_buffer.shape[1:])
    for i, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        seen = req_to_token[request, :length].long()
        output[i : i + 1] = _attend(
            query[i : i + 1], key_buffer[seen], value_buffer[seen], scale, None
        )


def extend_attention_cpu(
    query, key, value, output, key_buffer, value_buffer, k_scale, v_scale, req_to_token,
    requests, lengths, extend_lengths, starts, longest, scale, logit_cap, is_cross, window,
    encoder_lengths, sinks, tree_mask, is_causal,
):  # fmt: skip
    each = zip(*(x.tolist() for x in (requests, lengths, extend_lengths, starts)), strict=True)
    for i, (request, length, rows, start) in enumerate(each):
        seen = req_to_token[request, :length].long()
        mask = torch.ones(rows, length, dtype=torch.bool)
        mask[:, length - rows :] = (
            torch.ones(rows, rows).tril().bool()
            if tree_mask is None
            else tree_mask[i * rows * rows : (i + 1) * rows * rows].view(rows, rows).bool()
        )
        at = slice(start, start + rows)
        output[at] = _attend(query[at], key_buffer[seen], value_buffer[seen], scale, mask)


# ---- Slots of the KV cache


def assign_extend_cache_locs_cpu(requests, req_to_token, starts, ends, slots, width):
    each = zip(*(x.tolist() for x in (requests, starts, ends)), strict=True)
    found = torch.cat([req_to_token[request, start:end] for request, start, end in each])
    slots[: len(found)] = found


def assign_draft_cache_locs_contiguous_cpu(
    requests, req_to_token, lengths, slots, width, topk, steps
):
    assign_extend_cache_locs_cpu(
        requests, req_to_token, lengths, lengths + topk * steps, slots, width
    )


def assign_req_to_token_pool_cpu(requests, req_to_token, starts, ends, slots, width):
    each, at = zip(*(x.tolist() for x in (requests, starts, ends)), strict=True), 0
    for request, start, end in each:
        req_to_token[request, start:end] = slots[at : at + end - start]
        at += end - start


def fill_accept_out_cache_loc_cpu(accepted, slots, out):
    kept = accepted.flatten()
    kept = kept[kept >= 0].long()
    out[: len(kept)] = slots[kept]


def copy_all_layer_kv_cache_cpu(addresses, strides, targets, sources):
    """Of each layer, rows of so many bytes at an address."""
    for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + row * stride, stride) for row in sources.tolist()]
        for row, content in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(address + row * stride, content, stride)


def fill_bonus_tokens_cpu(tokens, counts, bonus, stride):
    ends = torch.arange(len(counts)) * stride + counts.long() - 1
    bonus[:] = tokens.flatten()[ends].to(bonus.dtype)


def build_draft_decode_metadata_cpu(req_to_token, requests, lengths, topk, steps, width):
    """For each branch of each request: its slots, those of the prefix and its own."""
    table = torch.zeros(len(requests) * topk, width, dtype=req_to_token.dtype)
    each = zip(requests.tolist(), lengths.tolist(), strict=True)
    for i, (request, length) in enumerate(each):
        for branch in range(topk):
            row, first = table[i * topk + branch], length + branch * steps
            row[:length] = req_to_token[request, :length]
            row[length : length + steps] = req_to_token[request, first : first + steps]
    return table


def rotate_input_ids_cpu(tokens, starts, lengths, last, where):
    each = zip(starts.tolist(), lengths.tolist(), last.flatten().tolist(), strict=True)
    for i, (start, length, token) in enumerate(each):
        tokens[start : start + length - 1] = tokens[start + 1 : start + length].clone()
        if length:
            tokens[start + length - 1 if where is None else int(where[i])] = token


# ---- Trees: node 0 is the last token, the others are drafts


def _link(parents, first_child, next_sibling):
    """parents: of nodes 1, 2, ...; a parent comes before its children."""
    last = {}
    for node, parent in enumerate(parents, 1):
        if parent in last:
            next_sibling[last[parent]] = node
        else:
            first_child[parent] = node
        last[parent] = node


def build_tree_kernel_efficient_cpu(
    parent_list, selected, lengths, mask, positions, index, first_child, next_sibling,
    topk, depth, nodes, mode,
):  # fmt: skip
    mask = mask.view(len(lengths), nodes, nodes)
    mask[:] = torch.eye(nodes, dtype=mask.dtype)
    for b, length in enumerate(lengths.tolist()):
        chosen = selected[b].tolist()
        ranks = [each // topk for each in chosen]
        parents = [chosen.index(int(parent_list[b, r])) + 1 if r else 0 for r in ranks]
        index[b] = torch.arange(b * nodes, (b + 1) * nodes)
        _link(parents, first_child[b], next_sibling[b])
        mask[b, :, 0] = 1
        for node, parent in enumerate(parents, 1):
            mask[b, node] |= mask[b, parent]
        positions[b * nodes : (b + 1) * nodes] = length + mask[b].sum(1) - 1


def reconstruct_indices_from_tree_mask(
    mask, lengths, positions, index, first_child, next_sibling, batch, nodes
):
    seen = mask.view(batch, nodes, nodes).bool() & torch.ones(nodes, nodes).tril(-1).bool()
    index.view(-1)[:] = torch.arange(batch * nodes)
    positions.view(batch, nodes)[:] = seen.sum(2) + lengths.view(batch, 1)
    first_child.fill_(-1), next_sibling.fill_(-1)
    for b in range(batch):
        parents = [int(seen[b, node].nonzero().max()) for node in range(1, nodes)]
        _link(parents, first_child.view(batch, nodes)[b], next_sibling.view(batch, nodes)[b])


def verify_tree_greedy_cpu(
    predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token,
    retrive_next_sibling, target_predict,
):  # fmt: skip
    """Down from the root, as long as a child is what the model says."""
    for b in range(len(candidates)):
        node, count = 0, 0
        accept_index[b, 0] = retrive_index[b, 0]
        while True:
            token = target_predict[b, node]
            predicts[retrive_index[b, node]] = token
            child = int(retrive_next_token[b, node]) if count + 1 < accept_index.shape[1] else -1
            while child >= 0 and candidates[b, child] != token:
                child = int(retrive_next_sibling[b, child])
            if child < 0:
                break
            node, count = child, count + 1
            accept_index[b, count] = retrive_index[b, node]
        accept_token_num[b] = count


# ---- As SGLang finds them

_TENSORS = {
    "decode_attention_cpu": "Tensor query, Tensor(a!) key_buffer, Tensor(b!) value_buffer, "
    "float k_scale, float v_scale, Tensor(c!) output, Tensor? key, Tensor? value, Tensor slots, "
    "Tensor logits, Tensor req_to_token, Tensor requests, Tensor lengths, float scale, "
    "float logit_cap, bool is_cross, int window, Tensor? encoder_lengths, Tensor? sinks",
    "extend_attention_cpu": "Tensor query, Tensor key, Tensor value, Tensor(a!) output, "
    "Tensor key_buffer, Tensor value_buffer, float k_scale, float v_scale, Tensor req_to_token, "
    "Tensor requests, Tensor lengths, Tensor extend_lengths, Tensor starts, int longest, "
    "float scale, float logit_cap, bool is_cross, int window, Tensor? encoder_lengths, "
    "Tensor? sinks, Tensor? tree_mask, bool is_causal",
}
for _name, _arguments in _TENSORS.items():
    torch.library.define(f"sgl_kernel::{_name}", f"({_arguments}) -> ()")
    torch.library.impl(f"sgl_kernel::{_name}", "CPU")(globals()[_name])
