"""Tests that run once a week, each with a quicker one that goes through the same code in every change.

A test is named by its id, with ``*`` for any letters. What is long by nature (an exact law of one more
sampler, a second place to run chains) stands here; a quick fact of its own does not.
"""

import re

_SGMCMC, _KEYS = "tests/samplers/sgmcmc/", "tests/samplers/test_key_reuse.py::"
_EXACT = _SGMCMC + "test_exactness.py::"
_LAW = _EXACT + "test_mean_and_covariance_are_those_of_the_discretised_chain"
_ONCE = _KEYS + "test_no_sampler_comes_to_the_same_key_twice"
_SUSPECTS = "tests/samplers/test_suspects.py::"
_JUDGED = "tests/approximations/test_approximations_judged.py::"
_DENSITY = (
    "tests/models/test_integrated_output.py::test_the_density_is_the_integral_over_the_weights"
)

# The test of the week: the test of every change that reaches the same code.
WEEKLY = {
    # The contract of samplers, and their keys
    _SGMCMC + "test_contract.py::test_a_run[GGMC exact]": _SGMCMC
    + "test_contract.py::test_a_run[SGLD]",
    _SGMCMC + "test_contract.py::test_a_run[MALA exact]": _SGMCMC
    + "test_contract.py::test_a_run[SGLD]",
    _SGMCMC + "test_contract.py::test_a_run[SGHMC cyclical]": _SGMCMC
    + "test_contract.py::test_a_run[SGLD]",
    _ONCE + "[GGMC exact]": _ONCE + "[SGLD]",
    _ONCE + "[BAOAB svrg]": _ONCE + "[SGLD]",
    _KEYS + "test_no_kernel_uses_a_key_twice[Neal's Gibbs]": _KEYS
    + "test_no_kernel_uses_a_key_twice[NUTS]",
    _KEYS + "test_no_move_comes_to_the_same_key_twice[PrecisionRedraw of single weights]": (
        _KEYS + "test_no_move_comes_to_the_same_key_twice[PrecisionRedraw]"
    ),
    _KEYS + "test_no_rung_moves_by_the_key_of_another": _ONCE + "[SGLD]",
    # Exact laws
    _LAW + "[SGLD, control variate, hot]": _LAW + "[BAOAB, minibatches, cold]",
    _LAW + "[SGHMC, minibatches, hot]": _LAW + "[BAOAB, minibatches, cold]",
    _EXACT + "test_exact_samplers_are_exact_at_a_large_step[AMAGOLD-0.5]": (
        _SGMCMC
        + "test_metropolis.py::test_minibatches_and_large_steps_leave_the_draws_exact[amagold-1.0]"
    ),
    _EXACT + "test_the_biased_samplers_are_seen_to_be_biased": (
        _SGMCMC + "test_metropolis.py::test_without_the_correction_those_draws_are_wrong"
    ),
    _SGMCMC
    + "test_metropolis.py::test_minibatches_and_large_steps_leave_the_draws_exact[OBABO-0.5]": (
        _SGMCMC
        + "test_metropolis.py::test_minibatches_and_large_steps_leave_the_draws_exact[BAOAB-1.0]"
    ),
    _SGMCMC + "test_windows.py::test_the_law_is_kept_at_a_large_step*": (
        _SGMCMC + "test_windows.py::test_a_rejection_goes_back_along_the_trajectory"
    ),
    _SGMCMC + "test_auto_step.py::test_small_networks_at_first_try*": (
        _SGMCMC + "test_auto_step.py::test_auto_reaches_the_acceptance_it_aims_at[MALA-0.574]"
    ),
    _SGMCMC
    + "test_microcanonical.py::test_momenta_do_not_forget_while_a_chain_looks_for_its_step*": (
        _SGMCMC
        + "test_microcanonical.py::test_warmup_finds_the_step_of_the_energy_error_that_is_asked_for"
    ),
    _SGMCMC
    + "test_thermostat.py::test_the_thermostat_absorbs_unknown_gradient_noise[False-10-200]": (
        _SGMCMC
        + "test_thermostat.py::test_the_thermostat_absorbs_unknown_gradient_noise[True-10-200]"
    ),
    "tests/samplers/gibbs/test_moves.py::test_moves_after_a_kernel_of_this_package*": (
        "tests/samplers/gibbs/test_moves.py::test_precisions_drawn_anew_keep_the_law"
    ),
    "tests/samplers/gibbs/test_precision_gibbs.py::test_all_coordinates_and_kernels_give_the_same_precision*": (
        "tests/samplers/gibbs/test_gibbs_composition.py::test_the_precision_of_a_network_follows_its_marginal_posterior"
    ),
    # Chains that are suspect
    _SUSPECTS + "test_chains_that_go_nowhere_are_named_and_kept[Gibbs, one block fails]": (
        _SUSPECTS + "test_chains_that_go_nowhere_are_named_and_kept[HMC, huge steps]"
    ),
    _SUSPECTS + "test_healthy_short_runs_have_no_suspects[BAOAB-2]": (
        _SUSPECTS + "test_healthy_short_runs_have_no_suspects[Gibbs-10]"
    ),
    _SUSPECTS + "test_healthy_short_runs_have_no_suspects[RandomWalk-1]": (
        _SUSPECTS + "test_healthy_short_runs_have_no_suspects[Gibbs-10]"
    ),
    # Approximations
    _JUDGED + "*[swag]": _JUDGED + "test_it_is_diagnosed[map_estimate]",
    _JUDGED + "*[mean_field]": _JUDGED + "test_it_is_diagnosed[map_estimate]",
    "tests/approximations/test_modes_reached.py::test_laplace_is_centred_there": (
        "tests/approximations/test_laplace.py::test_it_is_exact_for_a_linear_model"
    ),
    "tests/approximations/test_modes_reached.py::test_each_randomised_member_is_at_the_mode_of_its_own_problem": (
        "tests/approximations/test_modes.py::test_randomised_targets_follow_their_rows_in_a_minibatch"
    ),
    "tests/approximations/test_modes.py::test_a_noise_that_is_fitted_calls_for_weights_of_rows": (
        "tests/approximations/test_modes.py::test_randomised_targets_follow_their_rows_in_a_minibatch"
    ),
    "tests/approximations/test_laplace.py::test_gauss_newton_is_the_expected_hessian_of_every_family[noisy]": (
        "tests/approximations/test_laplace.py::test_a_logistic_regression_has_one_curvature"
    ),
    "tests/approximations/test_sgd_iterates.py::test_iterates_have_the_stationary_mean_and_covariance": (
        "tests/approximations/test_sgd_iterates.py::test_swag_halves_the_correlations_of_the_iterates"
    ),
    "tests/approximations/test_sgd_iterates.py::test_the_automatic_rate_is_the_one_of_the_theorem_or_the_stable_one[True]": (
        "tests/approximations/test_sgd_iterates.py::test_the_automatic_rate_is_the_one_of_the_theorem_or_the_stable_one[False]"
    ),
    # Models
    _DENSITY + "[an output each-noncentered]": _DENSITY + "[by hand-noncentered]",
    _DENSITY + "[horseshoe-noncentered]": _DENSITY + "[by hand-noncentered]",
    _DENSITY + "[a way past-noncentered]": _DENSITY + "[by hand-noncentered]",
    "tests/models/test_integrated_output.py::test_weights_drawn_back_have_the_joint_law_of_the_prior[an output each]": (
        "tests/models/test_integrated_output.py::test_weights_drawn_back_have_the_joint_law_of_the_prior[by hand]"
    ),
    # Runs
    "tests/run/test_processes.py::test_a_*": (
        "tests/run/test_devices.py::test_rows_on_two_devices_give_the_draws_of_one[BAOAB]"
    ),
    "tests/run/test_processes.py::test_what_one_process_meets_ends_the_run_in_both*": (
        "tests/run/test_processes.py::test_an_error_of_any_length_can_be_told"
    ),
    "tests/run/test_devices.py::test_rows_on_two_devices_give_the_draws_of_one[HMC]": (
        "tests/run/test_devices.py::test_rows_on_two_devices_give_the_draws_of_one[BAOAB]"
    ),
    "tests/run/test_mcmc.py::test_draws_do_not_depend_on_where_chains_run[vmap]": (
        "tests/run/test_mcmc.py::test_draws_do_not_depend_on_where_chains_run[vectorized]"
    ),
    # What is stored
    "tests/storage/test_checkpoints.py::test_every_kernel_goes_on_to_the_same_bits[Gibbs]": (
        "tests/storage/test_checkpoints.py::test_every_kernel_goes_on_to_the_same_bits[NUTS]"
    ),
    "tests/storage/test_locks.py::test_a_killed_process_does_not_block_who_goes_on[False]": (
        "tests/storage/test_locks.py::test_a_killed_process_does_not_block_who_goes_on[True]"
    ),
    # Data
    "tests/data/test_units.py::test_plain_numpyro_gives_the_same_draws": (
        "tests/data/test_units.py::test_a_model_inside_a_users_model_standardises_inside_it"
    ),
    "tests/data/test_units.py::test_optimised_energies_are_those_of_near_data": (
        "tests/data/test_units.py::test_far_data_give_the_draws_and_the_scores_of_near_ones[unix seconds]"
    ),
    "tests/data/test_host_rows.py::test_draws_are_those_of_data_in_memory[blocks-vectorized]": (
        "tests/data/test_host_rows.py::test_draws_are_those_of_data_in_memory[permutation-parallel]"
    ),
    "tests/data/test_columns.py::*[mean field*]": (
        "tests/data/test_columns.py::test_other_columns_are_refused_by_predict[ready-another order]"
    ),
    "tests/data/test_containers.py::test_every_door_takes_what_any_container_holds[own]": (
        "tests/data/test_containers.py::test_every_door_takes_what_any_container_holds[ready]"
    ),
    # The whole way
    "tests/workflow/test_fit.py::test_a_kernel_of_ones_own": (
        "tests/workflow/test_fit.py::test_the_whole_way"
    ),
    "tests/samplers/sgmcmc/test_composition.py::test_dynamics_from_outside_run_without_any_of_ours": (
        "tests/samplers/sgmcmc/test_composition.py::test_a_sampler_from_outside_has_the_law_of_its_target"
    ),
}
_PATTERNS = {name: re.compile(re.escape(name).replace(r"\*", ".*")) for name in WEEKLY}


def is_weekly(name: str) -> bool:
    """Whether the test of this id runs once a week only."""
    return any(pattern.fullmatch(name) for pattern in _PATTERNS.values())
