"""
The model-authoring API: models as flows of stages, which build HIR.

`model.ModelFlow` builds a program of the stages in `stages`; `source` is where weights come from,
`profile` how the program is compiled, `context` and `state` what stages of one's own work with.
Import from these modules: the runtime reads `source` without loading xDSL.
"""
