"""Names that users import go on working: those of before the package had rooms, and of since."""

from importlib import import_module

import pytest

NAMES = {
    "": """
        AMAGOLD BAOAB BNNClassifier BNNRegressor Draws GGMC MALA MAMS MCLMC MCMC MLP OnHost
        PSGLD ParallelTempering
        PrecisionGibbs RandomWalk SGHMC SGLD SGMCMC SGNHT WindowedHMC average cache calibrate
        check_fit classification
        compare constant_sgd deep_ensemble describe diagnose diagnostics export fit from_inference_data
        from_params gradients laplace likelihoods load map_estimate mean_field moves neal noisy_inputs
        optimize parameterize plots potential_of preconditioners predict prior_predictive
        priors random_module randomized_map references regression save schedules scores second_opinion
        stack stacking_weights swag thin to_inference_data to_params update without
    """,
    "diagnostics": """
        HiddenLayer QuantileDifference Relabelling
        Report RhatTable
        SecondOpinion Summary VarianceParts align compare_draws
        diagnose diagnose_draws ebfmi ess find_hidden_layers
        mcse_mean nested_rhat rhat summarize variance_parts
    """,
    "likelihoods": """
        Precision ReadyModel Standardization bernoulli categorical classification gaussian
        heteroscedastic regression student_t survival
    """,
    "plots": """
        PALETTE plot_decision_boundary plot_density_surface
        plot_layer_temperature plot_pit plot_predictive_band plot_reliability plot_rhat
        plot_score_against_time plot_temperature plot_trace
    """,
    "priors": """
        ByPath FanIn FromFunction Hierarchical Horseshoe Laplace Normal Prior StudentT
        pretrained
    """,
    "scores": """
        PairedDifference Reliability Uncertainty accuracy agreement brier coverage crps
        entropy expected_calibration_error lppd ood_auroc
        paired_difference pit reliability rmse standard_error total_variation uncertainty
        wasserstein
    """,
    "references": """
        Differences Grade Quantities Reference grade load names
    """,
    "gradients": """
        control_variate full minibatch svrg
    """,
    "preconditioners": """
        diagonal from_warmup given_precisions identity rmsprop
    """,
    "schedules": """
        cyclical polynomial
    """,
    "moves": """
        Bound Interleaved Move OutputLayerGibbs PrecisionRedraw RidgeScaling UnitRefresh UnitRescaling
    """,
}
ALL = [(module, name) for module, names in NAMES.items() for name in names.split()]


# Libraries of different ages deprecate each other's functions while they are imported.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("module", "name"), ALL)
def test_a_public_name_is_where_it_was(module, name):
    root = import_module("numpyro_bnn")
    assert getattr(getattr(root, module) if module else root, name).__class__


def test_moves_are_imported_by_their_short_name():
    from numpyro_bnn.moves import Interleaved, RidgeScaling

    assert Interleaved.__module__.startswith("numpyro_bnn.samplers.gibbs")
    assert RidgeScaling.__module__.startswith("numpyro_bnn.samplers.gibbs")
