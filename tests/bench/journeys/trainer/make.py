from transformers import GPT2Config, GPT2LMHeadModel

sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 256}
GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).save_pretrained("tiny-gpt2")
