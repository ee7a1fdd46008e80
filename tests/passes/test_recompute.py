from tests.conftest import model_case
def test_x():
    assert model_case("lm").training.nodes
