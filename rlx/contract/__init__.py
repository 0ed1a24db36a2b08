"""The contract: graphs, phases, variants, plans and the fusion gate, as plain data without IR."""
