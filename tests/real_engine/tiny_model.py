"""Makes the model that the real engine serves: two layers with random weights, and a tokenizer of 300 entries.

    python tiny_model.py DIRECTORY

Runs in the engine's own environment, and needs no network. The weights are the same each time, so what it says is, too.
"""

from __future__ import annotations

import os
import sys

# Before anything of transformers is imported, which reads it then.
os.environ["HF_HUB_OFFLINE"] = "1"

TEXT = "hello world 1 2 3 the keeper of the light "
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
BEGIN, END = "<s>", "</s>"
# The tokens of one context: the longest of the canary's prompts but `long_input` has some 300, byte by byte.
CONTEXT = 2048


def main(directory: str) -> None:
    """Write tokenizer, configuration and weights."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    from tokenizers import (  # type: ignore[import-not-found, unused-ignore]
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import (  # type: ignore[import-not-found, unused-ignore]
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[BEGIN, END], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT] * 50, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


if __name__ == "__main__":
    main(sys.argv[1])
