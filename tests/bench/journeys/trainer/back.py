from transformers import AutoModelForCausalLM

print(type(AutoModelForCausalLM.from_pretrained("final")).__name__)
