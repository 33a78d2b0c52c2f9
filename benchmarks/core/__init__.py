"""The Reach table of the exact core: equality, agreement with transformers, start-up, decode, hop, resources."""
