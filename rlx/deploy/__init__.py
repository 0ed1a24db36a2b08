"""
Ahead-of-time deployment: a folder with a model's compiled programs, packed weights and tokenizer.

`rlx compile MODEL -o DIR` writes it, and `rlx.load(DIR)` runs it with numpy and llvmlite alone, on
any machine whose CPU has what the code needs: nothing is compiled there.

    rlx.json          what the model is, what its code needs, and the other files' keys
    objects/KEY       a compiled program, or other code, as in the cache folder
    weights.packed    the packed weights, as in the cache folder, which are mapped
    tokenizer.json    the tokenizer, where the model has one that rlx knows

Each file is checked when it is read: what anything has damaged is one error.
"""
