"""Capture in JAX where the model is inside jit: the compiled function returns the ids of all layers,
and they are recorded outside. What is recorded inside would be recorded once, when jit traces.

usage: jit.py
"""

import jax
import numpy as np
import routecap

LAYERS, K, EXPERTS = 4, 2, 16
weights = jax.random.normal(jax.random.key(0), (LAYERS, 8, EXPERTS))


@jax.jit
def forward(hidden):
    chosen = []
    for layer in range(LAYERS):
        _, ids = jax.lax.top_k(hidden @ weights[layer], K)
        chosen.append(ids)
        hidden = hidden + 0.1 * jax.nn.tanh(hidden)
    return hidden, jax.numpy.stack(chosen)  # [layers, rows, k], beside what it returns anyway


with routecap.Capturer(layers=LAYERS, k=K, experts=EXPERTS, rows=64, backend="host") as capturer:
    request = capturer.open()
    hidden, chosen = forward(jax.numpy.ones((5, 8)))
    with capturer.step(5) as step:
        for layer, ids in enumerate(np.asarray(chosen)):  # waits for the device, once for all
            step.record(layer, ids)
        step.issue(routecap.spans(request=request, position=0, rows=5))
    routing = request.finish(5)
    routing.wait()
    assert routing.complete and (routing.ids() == np.asarray(chosen).transpose(1, 0, 2)).all()
    print(routing.ids().shape, routing.missing)
