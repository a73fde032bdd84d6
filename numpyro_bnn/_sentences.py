"""All sentences that reports can say, in one table, to be read as a whole.

A sentence has at most 25 words. The first sentence of an entry says what was found, and can stand alone; the
others say what to do. Values in braces are filled in by :func:`say`.
"""

from string import Formatter
from typing import Any

import numpy as np

SENTENCES: dict[str, str] = {
    # --- what to do, by verdict ---
    "within tolerance": "Use the averages as they are.",
    "within tolerance on average": "Use scores and averages over rows. Look up a single row before you use it.",
    "run longer": "Take {draws}.",
    "chains disagree": "Averages over them are those of an ensemble and not of the posterior. Score predictions on held-out rows. For the posterior, sample by tempering (`ParallelTempering`, or the kernel `tempering`).",
    "tempered chains disagree": "Averages over them are those of an ensemble and not of the posterior. Run longer, or with more rungs or longer trajectories.",
    "drifting": "Discard the beginning and run longer.",
    "too short": "Take at least {least} draws a chain; 1000 are usual.",
    "invalid": "Leave these chains out, lower the step size, or start from `bnn.optimize`.",
    "invalid predictions": "Look at the inputs or at the distribution of the target. More draws change nothing.",
    "suspects": "Leave the suspect chains out. Or run again from `bnn.optimize` or with another step size.",
    "no series": "Diagnose that run, such as `fitted.mcmc`.",
    "approximation": "Sample the model and compare: diagnose(run, x, second=draws).",
    "copies": "Give every chain a random key of its own.",
    "sampler first": "First mend what is said of the sampler, then run again.",
    # --- errors of predictions ---
    "error of classes": "Error of averaged class probabilities in total variation: {error:.2g} ({limit:g} accepted), in the worst rows {worst:.2g} ({worst_limit:g}). More draws could change the likeliest class of {open:%} of rows.",
    "error of predictions": "Error of averaged {what} in {unit}: {error:.2g} ({limit:g} accepted), in the worst rows {worst:.2g} ({worst_limit:g}).",
    "error of score": "Error of the log score in nats: {error:.2g} ({limit:.2g} accepted); the number of rows alone leaves {rows:.2g} open. Finite draws lower it by {bias:.2g}.",
    "impossible": "The log score was left out: no draw gives the targets of {count} of {rows} rows any probability.",
    "unknown errors": "Errors of {count} of {total} {what} are not known yet. They have fewer than 50 effective draws, or five batches a chain.",
    "worst rows": "{count} of {rows} rows err by more than {limit:.2g} {unit} (worst: {worst}).",
    "draws needed": "To bring all within tolerance takes {draws} (set by {by}).",
    "rhat above": "R-hat of {count} of {total} {what} is above about {limit:.3f}. So many {what} of converged chains seldom exceed it.",
    "rhat spread": "Their averages are known, but how far the draws spread there may not be.",
    "none helps": "More draws change nothing: start again from `bnn.optimize` or with another step size.",
    "nothing moves": "Every draw of every chain is the same.",
    # --- agreement of chains ---
    "agree": "The {who} agree (p = {p:.2g} over all {what}).",
    "differ a little": "The {who} differ by more than chance explains (p = {p:.2g}), but by less than what is accepted.",
    "not tested": "Whether the {who} agree cannot be tested yet. It takes {least} batches of {length} draws {each}.",
    "slow": "{count} of {total} {what} move too slowly for that test (such as {example}).",
    "halves differ": "The halves of the chain differ (p = {p:.2g}). They have {far}. It drifts, or has crossed into another mode.",
    "each alone": "Every chain tells its own story{where} (p = {p:.2g}). They have {far}.",
    "groups differ": "{count} groups of chains ({groups}) differ{where} (p = {p:.2g}). They have {far}.",
    "best group": "By log score group {best} ({chains}) predicts best. In the order of the groups: {scores} nats.",
    "different solutions": "The chains found different solutions. More draws help only chains that cross from one to another.",
    "suggest superchains": "So many short chains can be compared in groups that start at one point. Write diagnose(run, x, superchains=number of groups).",
    "remember": "Chains remember where they started. Nested R-hat of the superchains is {value:.3f}, above its limit {limit:.3f}. Run longer.",
    "forgotten": "Chains have forgotten their starts. Nested R-hat of the superchains is {value:.3f}, below its limit {limit:.3f}.",
    "stuck": "Chains that do not move: {chains}. Leave them out, or start again from `bnn.optimize` with a smaller step.",
    "drift": "The chains drift. Averages of their first halves and of their second differ by more than chance and tolerance.",
    # --- parameters, weights ---
    "parameters known": "Parameters known to {limit:g} of their sd: {count} of {count} (mean ± Monte Carlo error: {listed}).",
    "parameters unknown": "Parameters not known to {limit:g} of their sd: {bad} of {count} (mean ± Monte Carlo error: {listed}).",
    "parameters differ": "The chains disagree on parameters, such as {name}. Their averages are up to {far:.2g} sd apart (p = {p:.2g}).",
    "weights": "Weights and precisions of networks are no part of the verdict, nor are other sites that `parameters` does not name. Hidden units can be relabelled without changing a prediction.",
    "relabelled": "Matching hidden units explains much of how weights differ. {before:%} of their variance lies between chains, and {after:%} once units are matched (worst R-hat {rhat:.3f}).",
    "not relabelled": "Matching hidden units changes little. {before:%} of the variance of the weights lies between chains, worst R-hat {rhat:.3f}.",
    # --- what was not looked at ---
    "one chain": "One chain only: other modes cannot be seen from it. Its halves stand for chains; run at least four.",
    "step bias": "This sampler has no Metropolis correction. R-hat cannot detect the bias of its step size. Compare with a run of NUTS (`second_opinion`).",
    "step bias bounded": "This sampler has no Metropolis correction. The bias of its step size is at most the distance to the second run, if that has none.",
    "no predictions": "No predictions were given. Weights do not say whether the functions of a network are known; give inputs to predict at.",
    # --- draws that cannot be judged as they are ---
    "no number": "Chain {chain} holds NaN or infinite values from draw {draw} on ({site}).",
    "others": "Leave out {chains}; the others alone get the verdict: {verdict}.",
    "no chain left": "No chain is left: lower the step size, or start from optimised weights.",
    "few draws": "{draws} draws a chain are too few to judge (at least {least}). Their errors would be too uncertain.",
    "by suspects": "Suspect: {chains}. What follows is what the draws alone would say.",
    "left out": "What follows is about the chains that are among the draws. Left out: {chains}.",
    "copied": "Copies, bit for bit: {groups}. They count once, which leaves {left} of {chains} chains.",
    "copies only": "One chain is nothing to compare. What follows is what it alone would say.",
    "unequal superchains": "The superchains of the chains that are left cannot be compared (unequal, or of one chain each), so that there is no nested R-hat.",
    "of approximation": "These draws are of an approximation ({kernel}) and not of a chain. No Monte Carlo error says how far they are from the posterior.",
    "of no series": "These draws were {made} and are no time series. Their error is that of the run that they come from.",
    "from priors": "There are no draws of {sites}. Each draw takes values of them from their priors; averages and errors allow for that.",
    "bad rows": "{names} are NaN or infinite {often}, at {count} of {total} rows ({rows}), while the weights are finite. Look at the inputs of these rows, or leave the rows out.",
    "bad everywhere": "{names} are NaN or infinite {often}, at all rows, while the weights are finite. Inputs are not finite, or weights are so large that predictions overflow.",
    "no moment": "{names} are NaN or infinite {often}, at all rows, while the weights are finite. The distribution of the target has {missing}, or weights are so large that predictions overflow. Take a distribution that has moments.",
    # --- a second run ---
    "second apart": "Averages of a second run are {mean:.2g} {unit} away ({worst:.2g} in the worst rows). Errors of both explain {chance:.2g}, and {limit:.2g} is accepted.",
    "second score": "The mean log score of the second run is {score:+.2g} ± {error:.2g} nats away ({sure}).",
    "second too short": "The second run is too short to be compared: it has fewer than four draws a chain.",
    "second agrees": "A second run agrees in all {count} means and quantiles, within joint Monte Carlo errors.",
    "second unclear": "None of {count} means and quantiles differs by itself. Each has an error too large to show it.",
    "second differs": "A second run differs in {parted} of {count} means and quantiles. Worst is {quantity} of {site}: {first:.4g} here, {second:.4g} there, {errors:.3g} joint errors apart. One of them has missed something.",
    # --- the sampler ---
    "divergent": "{count} transitions diverged ({share:%}). The draws miss where the posterior bends most, and no R-hat can show that. Raise target_accept_prob or reparameterise.",
    "saturated": "{count} trajectories ended at the largest tree ({share:%}). The sampler turns back before it has crossed the posterior. Raise max_tree_depth, and begin at `bnn.optimize`.",
    "cut": "{count} trajectories were cut at the most steps allowed ({share:%}). They end before they have crossed the posterior. Raise max_num_steps, and begin at `bnn.optimize`.",
    "hardly moves": "Chain {chain} accepts {share:%} of its proposals and hardly moves. Lower the step size.",
    "low ebfmi": "E-BFMI of chain {chain} is {value:.2f} (below {limit:g}). Its momentum hardly changes the energy, so that the tails are not reached. Reparameterise.",
    "temperature": "The {values} where {asked:.3g} was asked for. {advice}",
    "same sites": "The same holds for {sites}.",
    "gradient temperature": "Along minibatch gradients the kinetic temperature is {value:.3g} ± {error:.1g} where {asked:.3g} was asked for. It is right on average over weights. {advice}",
    "not stationary": "The chains are not stationary, they have not arrived. Run longer, start from `optimize`, or take larger steps.",
    "still falling": "The chains are not stationary, and what they lose in energy heats the momenta. Run longer. Lower step_size only if the momenta stay hot.",
    "step too large": "The step is too large for the curvature or for the minibatch noise. Give gradient_noise='auto' (BAOAB, SGHMC, SGLD), lower step_size, or raise batch_size or friction.",
    "too cold": "Too little noise is added, or the step is near the largest that the curvature allows. Lower gradient_noise if it was given, else step_size.",
    "large or early": "The step is too large, or the chains began far out and have not arrived. Run longer; if it stays, lower step_size or raise batch_size.",
    "shared noise": "Noise of minibatches that many weights share makes predictions too wide. Take gradient=gradients.svrg(batch_size, order='replacement'), larger minibatches or smaller steps.",
    "no step": "Step_size is 0, so that no chain moves. Give a positive one, or 'auto'.",
    "no round trip": "{chains} made no round trip between prior and posterior. Nothing shows that modes are crossed. Run longer, or with more rungs or longer trajectories.",
    "evidence differs": "The log evidence of {whose} runs from {low:.2f} to {high:.2f} nats. Their errors and one nat do not explain that.",
    "by draws alone": "What follows is what the draws alone would say.",
    # --- how a run in stages ended ---
    "stopped": "Stopped after {draws} draws a chain ({reason}).",
    "dropped": "The first {draws} draws of each chain were dropped.",
    "stopped: within tolerance": "Averages are known as well as was asked, judged twice in a row, and {chains} agree.",
    "stopped: modes: temper": "The chains disagree: they are in different modes, which more draws will not join. Sample by tempering (`ParallelTempering`, or the kernel `tempering`).",
    "stopped: chains that do not move": "Some chains do not move, which more draws will not change. Start from `bnn.optimize`, or use another step size.",
    "stopped: predictions are not finite": "More draws will not change that.",
    "stopped: no chain stayed finite": "Every chain has draws that are not finite.",
    "stopped: max_minutes": "The time limit was reached: give more minutes.",
    "stopped: no time": "There was no time to sample. What there is are the optimised networks, an ensemble and no posterior. Give more minutes.",
    "stopped: interrupted": "The run was interrupted.",
    "not confirmed": "The last judgement was within tolerance; no second one confirmed it.",
    "time left": "To be within tolerance would take {time} more.",
    # --- scores beside those of guessing ---
    "right on test rows": "{own} of the {rows} test rows are classified right. Guessing without inputs gets {guessed}, plain training {trained}.",
    "off on test rows": "Predictions of the {rows} test rows are off by {own} (root mean square). Guessing without inputs is off by {guessed}, plain training by {trained}.",
    "beside plain training": "The log score of the posterior average less that of plain training is {gain:+.4f} ± {error:.4f} nats a row; above zero it is ahead.",
    "one function": "The {members} members of the ensemble are one function: they predict alike, so that averaging them changes nothing.",
    "inputs do not help": "The log score is no better than that of guessing ({guess}): {gap:+.3f} ± {error:.3f} nats a row above it.",
    "no better than guessing": "Always answering the majority class is wrong on {guessed:%} of the test rows, the posterior average on {error:%}. Judge it by its log score, not by its error.",
    "unequal classes": "Classes are unequal: {share:%} of the test rows are {name!r}, so that guessing errs on {error:%}. Look at the recall of each class.",
    # --- whether the model fits ---
    "held out": "On {rows} rows that were held out the mean log score is {score:.3f} ± {error:.2g} nats.",
    "held out inside": "Intervals of 90 % hold {share:%} ± {share_error:%} of their targets.",
    "held out right": "The likeliest class is right for {share:%} ± {share_error:%} of them.",
    "loo": "Predicting each row from the others: {mean:.3f} ± {error:.2g} nats a row (elpd {elpd:.1f} ± {se:.1f}).",
    "loo good": "The number may be believed. Pareto k̂ is large in {count} rows, which carry {share:%} of what leaving rows out changes.",
    "loo all good": "All Pareto k̂ are good: the number may be believed.",
    "loo doubted": "This number is not to be believed.",
    "loo parameters": "The effective number of parameters is {p_loo:.1f}, for {rows} rows.",
    "loo rows": "Pareto k̂ is above {limit:.2f} in {count} of {rows} rows, which carry {share:%} of what leaving rows out changes. Most comes from: {names}. Without them the posterior is not reached by these draws.",
    "loo more draws": "More draws do: from 2200 on, 0.7 is good enough.",
    "loo hold out": "Hold rows out instead, and score them by `bnn.scores.lppd`.",
    "loo tails": 'If they are outliers, noise with heavier tails fits better: `likelihood="student_t"`.',
    "loo suspects": "Suspect chains are among the draws ({chains}). Leave them out.",
    "loo approximation": "These draws are of an approximation ({kernel}). The number is only as good as that is, and no Pareto k̂ shows how good. Sample the model, for example with `NUTS`.",
    "loo sampler unknown": "These draws do not say which sampler made them. Of an approximation the number is only as good as that is.",
    "loo chains": "The chains disagree (p = {p:.2g}). Their shares in the average are an accident; see `bnn.diagnose`.",
    "loo untested": "The chains are too short, or move too slowly, to tell whether they agree. Run longer.",
    "hidden rows": "{rows} without a target, or hidden by a mask (`handlers.mask`). The model was not fitted to them, and they are left out here.",
    "loo step bias": "{kernel} accepts every step: the bias of its step size is in all of these numbers. Compare with a run of NUTS (`second_opinion`).",
    "no calibration": "The test of calibration is made for one target a row, and here are several.",
    "uniform": "Targets are where the others expect them: LOO-PIT is as uniform as for a right model (p = {p:.2g}; rare is below {limit}).",
    "not uniform": "Targets are not where the others expect them: LOO-PIT is not uniform (p = {p:.2g}; rare is below {limit}).",
    "calibrated": "As calibrated as a right model: the likeliest class is right {gap:%} of rows {less} often than stated (p = {p:.2g}; rare is below {limit}).",
    "miscalibrated": "The model is {sure}: the likeliest class is right {gap:%} of rows {less} often than stated (p = {p:.2g}; rare is below {limit}).",
    "quantities fine": "The model makes data like these: none of {count} quantities is rare (least adjusted p = {p:.2g}; rare is below 0.05).",
    "quantities rare": "The model seldom makes data like these: {listed}.",
}

# Parts of the line of two numbers and of the live line of a run.
PARTS: dict[str, str] = {
    "apart": "averages up to {far:.2g} {unit} apart{where} ({limit:.2g} accepted)",
    "parameter apart": "averages of {name} up to {far:.2g} sd apart",
    "beside its limit": "{name} {value:.2g} ({limit:.2g} accepted)",
    "p": "p = {p:.2g}",
    "chains agree": "{who} agree (p = {p:.2g})",
    "not compared": "{who} not compared yet",
    "starts remembered": "{who} remember where they started",
    "suspect": "{bad} of {chains} chains suspect",
    "all copies": "all chains are copies of one",
    "no error": "these draws are no chain, and have no Monte Carlo error",
    "bad draws": "NaN or infinite {what} in {bad} of {chains} chains",
    "look": "{draws} draws: {verdict}: {headline}",
    "stop": "stopped: {reason}",
    "left": "{time} left",
    "allowed": "{time} left, of which {over} are allowed",
}


class _Formatter(Formatter):
    """Writes counts with separators, shares as per cent, lists with commas, and infinity in words."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if isinstance(value, (list, tuple)):
            return ", ".join(map(str, value))
        if isinstance(value, (float, np.floating)) and not np.isfinite(value):
            return "not known yet"
        if format_spec == "%":
            return percent(float(value))
        whole = isinstance(value, (int, np.integer)) and not format_spec
        return super().format_field(value, "," if whole else format_spec)


def say(key: str, **values: object) -> str:
    """The sentences of an entry, or the part of a line, with its values filled in."""
    return _Formatter().format((SENTENCES | PARTS)[key], **values)


def percent(share: float) -> str:
    """A share in words: two digits below ten per cent, whole ones above."""
    return f"{100 * share:.2g} %" if share < 0.095 else f"{100 * share:.0f} %"
