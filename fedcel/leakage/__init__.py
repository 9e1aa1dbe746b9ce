"""Observations of an image, and the exact leak of each to the best possible attacker."""

from fedcel.leakage.answer_floor import answer_bits
from fedcel.leakage.attribute_leak import AttributeLeak, attribute_leak
from fedcel.leakage.certificate import Certificate, certificate, fano_bound
from fedcel.leakage.exact_bits import OptimalLeak, best_guesses, optimal_leak
from fedcel.leakage.gaussianity import Gaussianity, gaussianity
from fedcel.leakage.identification import identification, identify_by_label
from fedcel.leakage.image_leak import ImageLeak, image_leak
from fedcel.leakage.leakage import USELESS_BITS, Leakage
from fedcel.leakage.measure_leakage import (
    NoiseFunction,
    measure_attribute_leakage,
    measure_leakage,
    read_noise,
)
from fedcel.leakage.observation import (
    ARCHITECTURE,
    FIRST_LAYER,
    FREE_QUERIES,
    HEAD,
    LOG_PROB,
    LOGITS,
    MEAN,
    NOISELESS,
    UPDATE,
    Law,
    Observation,
    ObservationArchitecture,
    ObservationFirstLayer,
    ObservationHead,
    ObservationLikelihood,
    ObservationLogits,
    ObservationMean,
    ObservationMisfit,
    ObservationPaid,
    ObservationPooled,
    ObservationUpdate,
    find_law,
    make_refusal,
)
from fedcel.leakage.population_bound import (
    SIGMOID_RANGE,
    FeatureRange,
    GaussianMessages,
    PopulationBound,
    UpperLimits,
    bound_population,
)
from fedcel.leakage.smashed_data import SmashedData

__all__ = [
    "ARCHITECTURE",
    "FIRST_LAYER",
    "FREE_QUERIES",
    "HEAD",
    "LOGITS",
    "LOG_PROB",
    "MEAN",
    "NOISELESS",
    "SIGMOID_RANGE",
    "UPDATE",
    "USELESS_BITS",
    "AttributeLeak",
    "Certificate",
    "FeatureRange",
    "GaussianMessages",
    "Gaussianity",
    "ImageLeak",
    "Law",
    "Leakage",
    "NoiseFunction",
    "Observation",
    "ObservationArchitecture",
    "ObservationFirstLayer",
    "ObservationHead",
    "ObservationLikelihood",
    "ObservationLogits",
    "ObservationMean",
    "ObservationMisfit",
    "ObservationPaid",
    "ObservationPooled",
    "ObservationUpdate",
    "OptimalLeak",
    "PopulationBound",
    "SmashedData",
    "UpperLimits",
    "answer_bits",
    "attribute_leak",
    "best_guesses",
    "bound_population",
    "certificate",
    "fano_bound",
    "find_law",
    "gaussianity",
    "identification",
    "identify_by_label",
    "image_leak",
    "make_refusal",
    "measure_attribute_leakage",
    "measure_leakage",
    "optimal_leak",
    "read_noise",
]
