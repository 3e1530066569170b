"""Proximal policy optimisation on a line."""

import random
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical
from torch.distributions import Normal, kl_divergence

seed = 1
random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)
torch.backends.cudnn.deterministic = True
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class PointEnv:
    """Walk to the origin on a line."""

    def __init__(self, n):
        self.n = n
        self.rng = np.random.default_rng(0)

    def reset(self):
        self.x = self.rng.uniform(-1, 1, self.n).astype(np.float32)
        self.t = np.zeros(self.n)
        return self.obs()

    def obs(self):
        return np.stack([self.x, np.abs(self.x)], 1)

    def step(self, a):
        self.x = self.x + (a - 1) * 0.1
        self.t += 1
        r = -np.abs(self.x)
        d = self.t >= 20
        self.x = np.where(d, self.rng.uniform(-1, 1, self.n), self.x).astype(np.float32)
        self.t[d] = 0
        return self.obs(), r, d, {}


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class Agent(nn.Module):
    def __init__(self, obs, acts):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(obs, 16)), nn.Tanh(), layer_init(nn.Linear(16, 1), std=1.0)
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(obs, 16)), nn.Tanh(), layer_init(nn.Linear(16, acts), std=0.01)
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        logits = self.actor(x)
        probs = Categorical(logits=logits)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


num_envs, num_steps, minibatches, updates = 8, 20, 4, 5
batch_size = num_envs * num_steps
minibatch_size = batch_size // minibatches
envs = PointEnv(num_envs)
agent = Agent(2, 3).to(device)
optimizer = optim.Adam(agent.parameters(), lr=1e-2, eps=1e-5)
obs = torch.zeros((num_steps, num_envs) + (2,)).to(device)
actions = torch.zeros((num_steps, num_envs)).to(device)
logprobs = torch.zeros((num_steps, num_envs)).to(device)
rewards = torch.zeros((num_steps, num_envs)).to(device)
dones = torch.zeros((num_steps, num_envs)).to(device)
values = torch.zeros((num_steps, num_envs)).to(device)
next_obs = torch.Tensor(envs.reset()).to(device)
next_done = torch.zeros(num_envs).to(device)
means = []
for update in range(1, updates + 1):
    frac = 1.0 - (update - 1.0) / updates
    optimizer.param_groups[0]["lr"] = frac * 1e-2
    for step in range(0, num_steps):
        obs[step] = next_obs
        dones[step] = next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step] = action
        logprobs[step] = logprob
        next_obs, reward, done, info = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs, next_done = torch.Tensor(next_obs).to(device), torch.Tensor(done).to(device)
    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards).to(device)
        lastgaelam = 0
        for t in reversed(range(num_steps)):
            if t == num_steps - 1:
                nextnonterminal = 1.0 - next_done
                nextvalues = next_value
            else:
                nextnonterminal = 1.0 - dones[t + 1]
                nextvalues = values[t + 1]
            delta = rewards[t] + 0.95 * nextvalues * nextnonterminal - values[t]
            advantages[t] = lastgaelam = delta + 0.95 * 0.95 * nextnonterminal * lastgaelam
        returns = advantages + values
    b_obs = obs.reshape((-1, 2))
    b_logprobs = logprobs.reshape(-1)
    b_actions = actions.reshape((-1,))
    b_advantages = advantages.reshape(-1)
    b_returns = returns.reshape(-1)
    b_values = values.reshape(-1)
    b_inds = np.arange(batch_size)
    clipfracs = []
    for epoch in range(2):
        np.random.shuffle(b_inds)
        for start in range(0, batch_size, minibatch_size):
            mb_inds = b_inds[start : start + minibatch_size]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                b_obs[mb_inds], b_actions.long()[mb_inds]
            )
            logratio = newlogprob - b_logprobs[mb_inds]
            ratio = logratio.exp()
            with torch.no_grad():
                approx_kl = ((ratio - 1) - logratio).mean()
                clipfracs += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
            mb_adv = b_advantages[mb_inds]
            mb_adv = (mb_adv - mb_adv.mean()) / (mb_adv.std() + 1e-8)
            pg_loss = torch.max(
                -mb_adv * ratio, -mb_adv * torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
            ).mean()
            newvalue = newvalue.view(-1)
            v_loss_unclipped = (newvalue - b_returns[mb_inds]) ** 2
            v_clipped = b_values[mb_inds] + torch.clamp(newvalue - b_values[mb_inds], -0.2, 0.2)
            v_loss = 0.5 * torch.max(v_loss_unclipped, (v_clipped - b_returns[mb_inds]) ** 2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + v_loss * 0.5
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    y_pred, y_true = b_values.cpu().numpy(), b_returns.cpu().numpy()
    var_y = np.var(y_true)
    explained_var = np.nan if var_y == 0 else 1 - np.var(y_true - y_pred) / var_y
    means.append(rewards.mean().item())
    print(update, means[-1], v_loss.item(), approx_kl.item(), np.mean(clipfracs), explained_var)
assert np.isfinite(means).all()
print(kl_divergence(Normal(0.0, 1.0), Normal(torch.tensor(1.0), torch.tensor(2.0))))
