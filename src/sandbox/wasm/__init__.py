"""WebAssembly: the only package that imports wasmtime."""
