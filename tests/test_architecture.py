"""Rooms import in one way, files inside the large ones too; heavy libraries are imported in one room."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

import architecture
import pytest
from architecture import DOORS, FILES, imports, own_imports, room_of

import numpyro_bnn

# What each room may import from, lowest rooms first. A new arrow is a decision: write it here, and why in
# the commit.
ALLOWED = {
    "distributions": "_types",
    "compilation": "",
    "data": "_types",
    "samplers": "_types",
    "diagnostics.convergence": "_checks",
    "priors": "_checks _text _types distributions",
    "scores": "_checks data",
    "diagnostics.monte_carlo": "_checks diagnostics.convergence",
    "likelihoods": "_checks _types data distributions priors",
    "models": "_checks _text _types data distributions likelihoods priors",
    "potential": "_checks _types compilation data distributions likelihoods priors",
    "samplers.sgmcmc": "_checks _text _types data distributions potential priors samplers",
    "storage": "_checks _text _types compilation data potential priors samplers",
    "plots": "diagnostics.convergence diagnostics.monte_carlo posterior potential samplers.sgmcmc scores",
    "samplers.gibbs": "_text _types data distributions models potential priors samplers samplers.sgmcmc",
    "posterior": (
        "_calls _checks _types compilation data distributions likelihoods potential priors samplers storage"
    ),
    "samplers.tempering": (
        "_checks _sentences _text _types distributions potential samplers.gibbs samplers.sgmcmc"
    ),
    "approximations": (
        "_checks _types compilation data distributions models posterior potential samplers.sgmcmc storage"
    ),
    "diagnostics.fit_check": "_html _sentences _text diagnostics.convergence plots posterior",
    "diagnostics": (
        "_calls _html _sentences _text _types diagnostics.convergence diagnostics.fit_check "
        "diagnostics.monte_carlo posterior priors samplers "
        "samplers.tempering storage"
    ),
    # The end of a run that goes on until it is known is a verdict: run/until.py asks for it.
    "run": (
        "_calls _checks _sentences _text _types compilation data diagnostics diagnostics.monte_carlo "
        "posterior potential priors samplers samplers.tempering storage"
    ),
    "workflow": (
        "_calls _checks _sentences _text _types approximations data diagnostics diagnostics.convergence "
        "diagnostics.fit_check diagnostics.monte_carlo distributions models posterior potential priors run "
        "samplers samplers.sgmcmc scores"
    ),
    "references": "diagnostics diagnostics.convergence likelihoods models posterior priors",
    "cli": (
        "_html _sentences data diagnostics.fit_check diagnostics.monte_carlo models plots posterior priors "
        "references run scores storage workflow"
    ),
}
# Files of the large rooms in rows: each imports from rows above its own here, never from its own or below.
ROWS = {
    "distributions": """
        unwrap gamma polya_gamma linear_gaussian
        distribution_functions generalized_inverse_gaussian
    """,
    "data": """
        entered_plates fingerprints units
        host_rows
        arguments probe_inputs
        not_finite row_hashes
        columns
    """,
    "cli": """
        csv_columns
        tables
        baselines
        job
        saved_fit
        job_report
        main
    """,
    "approximations": """
        guides keywords marginal_energy members stopping
        member_programs randomized_model
        member_optimizer
        curvature mean_field optimize sgd_iterates
        low_rank_laplace newton
        finish
        laplace modes
    """,
    "diagnostics": """
        checked_draws compare_runs distinct_functions hidden_units sampler_stats
        evidence
        verdict
        report
        diagnose_draws
        diagnose
    """,
    "diagnostics.convergence": """
        blocks
        rhat
    """,
    "diagnostics.monte_carlo": """
        tolerance
        mean_errors
        prediction_units
        agreement monte_carlo_error
    """,
    "likelihoods": """
        noise observe
        families survival
    """,
    "models": """
        call_order jaxpr_dependence layouts parameters pickled_modules
        affine_sites networks
        integrated_output random_module
        ready
    """,
    "plots": """
        style
        convergence predictive sampling
    """,
    "posterior": """
        fitted target_parameters
        draws
        leave_one_out prediction_programs prediction_sites
        separate_predictions training_data
        observed_targets predictive_draws prior_predictions
        predictions
        exported log_prior loo_preconditions saved_model_check stacking thinning
        archive arviz_groups
        arviz_export
    """,
    "potential": """
        compiled_arguments flat_position shared_rows sites
        convolutions rows data_dependencies
        rows_in_parts targets without_subsampling
        fixed_parameters known_indices
        structure
        potential
        chunked_likelihood starts
    """,
    "priors": """
        coordinates enclosing_handlers paths
        base
        precision_conditionals
        integrated_weights
        hierarchical horseshoe independent
    """,
    "run": """
        devices interrupts kernel_protocol plan starts
        continued ladder_results outcome programs refusals
        chain_states
        progress recorder
        course
        sampling until
        compiled_runs
        mcmc
    """,
    "samplers.sgmcmc": """
        branches dynamics dynamics.drift_kick_friction named noise schedules
        dynamics.methods gradients preconditioners
        accept dynamics.isokinetic dynamics.splitting gradient_noise
        checks momentum_refresh step_size
        state
        tuning
        transitions
        kernel
        named.microcanonical named.momentum named.overdamped named.windowed_hmc
    """,
    "samplers.tempering": """
        evidence ladder prior_draws rung_kernels
        state
        kernel
    """,
    "storage": """
        axis_names locks processes same_run stored_names
        folders orbax_arrays
        chunk_files
        stored_array
        draw_variables
        draw_store
        checkpoints
    """,
    "workflow": """
        default_kernels describe estimator_inputs method_table relevance training_rows
        calibration check_fit compare second_opinion
        fit
        estimators
    """,
}
HOME = {"flax": "models", "arviz": "posterior", "equinox": "models", "matfree": "approximations"}


def test_rooms_import_what_is_declared():
    found = architecture.edges()
    assert set(found) == set(ALLOWED), "declare what a new room may import"
    for room, others in found.items():
        new = sorted(others - set(ALLOWED[room].split()))
        assert not new, f"the room {room} imports from {new}, which ALLOWED does not declare"
        gone = sorted(set(ALLOWED[room].split()) - others)
        assert not gone, f"the room {room} no longer imports from {gone}: take it out of ALLOWED"


def test_rooms_are_not_in_a_circle():
    order = list(TopologicalSorter(architecture.edges()).static_order())
    assert (
        order.index("priors") < order.index("potential") < order.index("run") < order.index("cli")
    )


def test_no_file_imports_itself_through_others():
    graph = {name: set(own_imports(name)) for name in FILES if name not in DOORS}
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("priors.base") < order.index("potential.potential") < order.index("cli.main")


@pytest.mark.parametrize("room", ROWS)
def test_files_of_a_room_import_from_rows_before(room):
    rows = [row.split() for row in ROWS[room].strip().split("\n")]
    files = [name for row in rows for name in row]
    place = {f"{room}.{name}": i for i, row in enumerate(rows) for name in row}
    there = {name for name in FILES if room_of(name) == room and name != room}
    assert there == set(place), "say in one row of ROWS where a file belongs"
    assert max(map(len, rows)) <= len(files) // 2 + 2, (
        "a row that holds most of a room says nothing"
    )
    for name in there:
        upward = [other for other in own_imports(name) if place.get(other, -1) >= place[name]]
        assert not [o for o in upward if o != name], (
            f"{name} imports {upward}, of its own row or a later one"
        )


def test_large_rooms_have_rows():
    sizes: dict[str, int] = {}
    for name in FILES:
        sizes[room_of(name)] = sizes.get(room_of(name), 0) + 1
    assert {room for room, size in sizes.items() if size > 6 and room != "__init__"} <= set(ROWS)


@pytest.mark.parametrize(
    "name", [n for n in FILES if FILES[n].name == "__init__.py" and n != "__init__"]
)
def test_a_room_says_what_it_is_for(name):
    said = ast.get_docstring(ast.parse(FILES[name].read_text())) or ""
    assert said.count(". ") + said.count(".\n") + said.endswith(".") >= 2, (
        f"{name}: two to five sentences"
    )


def test_the_picture_is_current():
    drawn = architecture.PICTURE.read_text(encoding="utf-8")
    assert drawn == architecture.picture(), "draw it again: python tests/architecture.py"


@pytest.mark.parametrize("library", HOME)
def test_one_room_knows_the_library(library):
    users = {
        room_of(name)
        for name in FILES
        if library in {imported.split(".")[0] for imported in imports(FILES[name])}
    }
    assert users == {HOME[library]}


def test_importing_costs_nothing_beyond_jax_and_numpyro():
    heavy = ["flax", "equinox", "arviz", "matplotlib", "sklearn", "xarray", "rich"]
    program = (
        "import sys, numpyro_bnn; numpyro_bnn.MCMC; numpyro_bnn.priors; numpyro_bnn.potential_of;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


# Libraries of different ages deprecate each other's functions while they are imported.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", numpyro_bnn.__all__)
def test_every_public_name_is_there(name):
    value = getattr(numpyro_bnn, name)
    assert name in dir(numpyro_bnn)
    assert value.__doc__


def test_another_name_is_not():
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = numpyro_bnn.optimise
