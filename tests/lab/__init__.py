"""A GPU host on a machine that has none: cards, containers, an SGLang-like server, scenarios. See README.md."""
