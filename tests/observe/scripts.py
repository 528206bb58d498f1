"""Small training scripts of each kind, as people write them. None knows of the observer; each prints its losses."""

from __future__ import annotations

HEAD = """
import os
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 8), torch.randint(0, 2, (96,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def loss_of(x, y):
    loss = cross_entropy(model(x), y)
    print(repr(loss.item()), flush=True)
    return loss

def step(x, y):
    optimizer.zero_grad()
    loss_of(x, y).backward()
    optimizer.step()
"""
PLAIN = """
for x, y in DataLoader(data, 16):
    step(x, y)
"""
WITHOUT_LOADER = """
for x, y in zip(data.tensors[0].split(16), data.tensors[1].split(16)):
    step(x, y)
"""
WORKERS = """
for x, y in DataLoader(data, 16, num_workers=2, shuffle=True):
    step(x, y)
"""
SCALER = """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for index, (x, y) in enumerate(DataLoader(data, 16)):
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    if index in (1, 4):
        model[0].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
"""
ACCUMULATION = """
for index, (x, y) in enumerate(DataLoader(data, 8)):
    (loss_of(x, y) / 3).backward()
    if index % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""
LONG_ACCUMULATION = """
for epoch in range(4):
    for index, (x, y) in enumerate(DataLoader(data, 2)):
        (loss_of(x, y) / 48).backward()
        if index % 48 == 47:
            optimizer.step()
            optimizer.zero_grad()
"""
SHORT_LAST = """
for epoch in range(2):
    for x, y in DataLoader(data, 36):
        step(x, y)
"""
TWO_OPTIMIZERS = """
critic = nn.Linear(8, 1)
of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
for index, (x, y) in enumerate(DataLoader(data, 8)):
    of_critic.zero_grad()
    critic(x).mean().backward()
    of_critic.step()
    if index % 3 == 2:
        step(x, y)
"""
CRITIC = TWO_OPTIMIZERS.replace("index % 3 == 2", "index % 5 == 4")
PER_GROUP = """
second = torch.optim.Adam(model[3].parameters())
for x, y in DataLoader(data, 16):
    second.zero_grad()
    step(x, y)
    second.step()
"""
LBFGS = """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
for x, y in DataLoader(data, 16):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        return loss
    optimizer.step(closure)
"""
NO_OPTIMIZER = """
del optimizer
for epoch in range(10):
    for x, y in DataLoader(data, 16):
        model.zero_grad()
        loss_of(x, y).backward()
        with torch.no_grad():
            for weights in model.parameters():
                weights -= 0.1 * weights.grad
"""
LATE_OPTIMIZER = (
    NO_OPTIMIZER
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, 16):
    step(x, y)
"""
)
FUNCTION = """
weights = torch.randn(8, 2, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for x, y in DataLoader(data, 16):
    optimizer.zero_grad()
    loss = cross_entropy(x @ weights, y)
    print(repr(loss.item()), flush=True)
    loss.backward()
    optimizer.step()
"""
IN_BACKWARD = """
import queue, threading, time
class Ahead:
    def __init__(self, batches):
        self.ready = queue.Queue(1)
        threading.Thread(target=self.fill, args=(batches,), daemon=True).start()
    def fill(self, batches):  # as prefetch_generator does
        for batch in batches:
            self.ready.put(batch)
        self.ready.put(None)
def collate(rows):
    time.sleep(0.005)  # the training goes on meanwhile
    return torch.utils.data.default_collate(rows)
own = {weights: torch.optim.SGD([weights], lr=0.1) for weights in model.parameters()}
def update(weights):
    own[weights].step()
    own[weights].zero_grad()
for weights in own:
    weights.register_post_accumulate_grad_hook(update)
teacher = nn.Linear(8, 2)
for x, y in iter(Ahead(DataLoader(data, 16, collate_fn=collate)).ready.get, None):
    with torch.no_grad():
        teacher(x)
    loss_of(x, y).backward()
"""
IN_FORWARD = """
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, batch):  # as Lightning has DDP call a training step
        step(batch["x"], batch["y"])
def collate(rows):
    x, y = torch.utils.data.default_collate(rows)
    return {"words": torch.nested.nested_tensor(list(x)), "x": x, "y": y}
whole = Whole()
for batch in DataLoader(data, 16, collate_fn=collate):
    whole(batch)
"""
FAILS_ONCE = """
class Careful(torch.optim.SGD):
    def step(self, closure=None):
        if index == 2:
            raise FloatingPointError
        return super().step()
optimizer = Careful(model.parameters(), lr=0.1)
for index, (x, y) in enumerate(DataLoader(data, 16)):
    try:
        step(x, y)
    except FloatingPointError:
        continue
"""
EXPLICIT = """
from scaling_study import observe
for x, y in DataLoader(data, 16):
    model.zero_grad()
    loss_of(x, y).backward()
    observe.step(samples=len(x))
"""
EVALUATION = """
import io, time
for index, (x, y) in enumerate(DataLoader(data, 16)):
    step(x, y)
    if index == 2:
        model.eval()
        with torch.no_grad():
            for some, _ in DataLoader(data, 48):
                model(some)
                time.sleep(0.05)
        model.train()
        torch.save(model.state_dict(), io.BytesIO())
"""
SEQUENCE_FIRST = """
model = nn.RNN(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, 16):
    optimizer.zero_grad()
    model(x.unsqueeze(0).expand(35, -1, -1))[0].sum().backward()
    optimizer.step()
"""
FETCHES_AHEAD = """
batches = iter(DataLoader(data, 16))
current = next(batches)
for following in batches:  # as accelerate does, which must know a last batch by then
    step(*current)
    current = following
"""
SEQUENCE_ALONE = """
model = nn.RNN(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in data.tensors[0].split(16):
    optimizer.zero_grad()
    loss = model(x.expand(35, -1, -1))[0].square().mean()
    print(repr(loss.item()), flush=True)
    loss.backward()
    optimizer.step()
"""
FORKED = """
import multiprocessing
def train():
    try:
        raise KeyError("whoever handles an error may train meanwhile")
    except KeyError:
        scaler = torch.amp.GradScaler("cpu")
        for x, y in DataLoader(data, 16):
            optimizer.zero_grad()
            scaler.scale(loss_of(x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
"""
COMPILED = """
model = torch.compile(model, backend="aot_eager")
for x, y in DataLoader(data, 16):
    step(x, y)
print(torch._dynamo.utils.counters["graph_break"], torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
DDP = """
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
for x, y in DataLoader(data, 16, sampler=torch.utils.data.DistributedSampler(data)):
    step(x, y)
dist.barrier()
"""
AVERAGED_ON_ITS_WAY_OUT = """
import torch.distributed as dist
dist.init_process_group("gloo")
try:
    for x, y in DataLoader(data, 16, sampler=torch.utils.data.DistributedSampler(data)):
        step(x, y)
finally:  # as accelerate's LocalSGD does
    dist.all_reduce(model[0].weight.data)
    dist.destroy_process_group()
"""
LOCAL_SGD = """
import torch.distributed as dist
dist.init_process_group("gloo")
batches, done = DataLoader(data, 16, sampler=torch.utils.data.DistributedSampler(data)), 0
for epoch in range(4):
    for x, y in batches:
        step(x, y)
        done += 1
        if done % 4 == 0:
            for weights in model.parameters():
                dist.all_reduce(weights.data)
                weights.data /= 2
"""
LEFT = """
dist.destroy_process_group()
for name in ("RANK", "WORLD_SIZE"):
    del os.environ[name]
"""
FSDP2 = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (2,))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for x, y in DataLoader(data, 16, sampler=torch.utils.data.DistributedSampler(data)):
    step(x, y)
dist.barrier()
"""
DEEPSPEED = """
import deepspeed
config = {
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
}
deepspeed.init_distributed("gloo")
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for x, y in DataLoader(data, 8, sampler=torch.utils.data.DistributedSampler(data)):
    loss = cross_entropy(engine(x), y)
    print(repr(loss.item()), flush=True)
    engine.backward(loss)
    engine.step()
torch.distributed.barrier()
"""
ZERO_1 = """
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
for x, y in DataLoader(data, 16, sampler=torch.utils.data.DistributedSampler(data)):
    step(x, y)
dist.barrier()
"""
FAIRSCALE = """
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
dist.init_process_group("gloo")
optimizer = OSS(model.parameters(), torch.optim.SGD, lr=0.1)
model = ShardedDataParallel(model, optimizer)
for x, y in DataLoader(data, 16, sampler=torch.utils.data.DistributedSampler(data)):
    step(x, y)
dist.barrier()
"""
PIPELINE = """
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
dist.init_process_group("gloo")
rank = dist.get_rank()
part = model[:2] if rank == 0 else model[2:]
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
schedule = Schedule1F1B(PipelineStage(part, rank, 2, torch.device("cpu")), 4, loss_fn=cross_entropy)
for x, y in DataLoader(data, 16):
    optimizer.zero_grad()
    losses = []
    schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
    optimizer.step()
    for loss in losses:
        print(repr(loss.item()), flush=True)
dist.barrier()
"""
LIGHTNING = """
import lightning as L
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        return loss_of(*batch)
    def validation_step(self, batch, index):
        self.model(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
off = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
trainer = L.Trainer(max_epochs=1, accelerator="cpu", **off)
trainer.fit(Module(), DataLoader(data, 16), DataLoader(data, 32))
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 8))
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(x, y))
        optimizer.step()
        optimizer.zero_grad()
"""
TRAINER = """
import tempfile
import transformers
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, x, labels):
        return {"loss": loss_of(x, labels)}
with tempfile.TemporaryDirectory() as folder:
    options = {"optim": "sgd", "lr_scheduler_type": "constant", "report_to": [], "save_strategy": "no"}
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=16, num_train_epochs=1, use_cpu=True, disable_tqdm=True, **options
    )
    rows = [{"x": x, "labels": y} for x, y in data]
    transformers.Trainer(Net(), arguments, train_dataset=rows).train()
"""
HOROVOD = """
import horovod.torch as hvd
hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_optimizer_state(optimizer, 0)
for x, y in DataLoader(data, 16):
    step(x, y)
"""
AVERAGED_BY_HAND = """
from mpi4py import MPI
for x, y in DataLoader(data, 16):
    optimizer.zero_grad()
    loss_of(x, y).backward()
    for weights in model.parameters():
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, weights.grad.numpy())
        weights.grad /= MPI.COMM_WORLD.Get_size()
    optimizer.step()
"""
SLOW_RANK = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
def collate(rows):
    time.sleep(0.005 * (dist.get_rank() == 1))
    return torch.utils.data.default_collate(rows)
sampler = torch.utils.data.DistributedSampler(data)
for epoch in range(40):
    for x, y in DataLoader(data, 16, sampler=sampler, collate_fn=collate):
        step(x, y)
dist.barrier()
"""
