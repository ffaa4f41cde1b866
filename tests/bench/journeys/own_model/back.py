import torch
from plan import make_model

model = make_model().eval()
print(model.load_state_dict(torch.load("model.pt")))
