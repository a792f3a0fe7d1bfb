suite(jax full 60 bash examples/jax/check.sh)
