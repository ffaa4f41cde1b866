from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
words = {"vocab_size": 256, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
LlamaForCausalLM(LlamaConfig(**sizes, **words, num_key_value_heads=2)).save_pretrained("tiny-llama")
