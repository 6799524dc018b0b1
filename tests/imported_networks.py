#!/usr/bin/env python3
"""Networks of torchvision, timm and transformers, trained in Python and by demi::ImportedModel:
imported_networks.py PARTNER [--list] [--table] [NAME...]

PARTNER is the program imported_partner. Each network is made with random weights, exported by scripts/demi_export.py, and trained for ten steps
of SGD in FP32, then evaluated, in both. A line a network: the same bits; or those of the exported graph in Python, where the script says
by how much PyTorch's export is apart from the network; or the words with which the script refuses it; or what is wrong: other bits, or a
file that C++ refuses. Exit code 1 if anything is wrong. --list prints the names, --table Markdown; a NAME may be the beginning
of several. Needs torch, safetensors and what of torchvision, timm and transformers shall be tried (nothing is downloaded).
"""
import gc
import os
import subprocess
import sys
import tempfile
import time
import warnings

from imported_agreement import Partner, demi_export, nn, torch, train  # exits with 77 without torch
from torch.export.pt2_archive._package import load_pt2

STEPS = 10
ROWS = 2

# Of each family the smallest: name, size of its pictures.
TORCHVISION = {
    **{name: 64 for name in """alexnet convnext_tiny convnext_small densenet121 densenet161 densenet169 efficientnet_b0 efficientnet_b1
       efficientnet_b2 efficientnet_v2_s mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small
       regnet_x_400mf regnet_x_800mf regnet_x_1_6gf regnet_y_400mf regnet_y_800mf regnet_y_1_6gf resnet18 resnet34 resnet50 resnet101
       resnext50_32x4d wide_resnet50_2 shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 squeezenet1_0 squeezenet1_1 swin_t
       swin_v2_t vgg11 vgg11_bn vgg13_bn vgg16 vit_b_32""".split()},
    "googlenet": 64, "inception_v3": 299, "maxvit_t": 224, "deeplabv3_mobilenet_v3_large": 64, "deeplabv3_resnet50": 64, "fcn_resnet50": 64,
    "lraspp_mobilenet_v3_large": 64, "r3d_18": 32, "mc3_18": 32, "r2plus1d_18": 32, "raft_small": 128,
    "fasterrcnn_mobilenet_v3_large_320_fpn": 64, "retinanet_resnet50_fpn": 64, "ssdlite320_mobilenet_v3_large": 64,
}

TIMM = {
    **{name: 64 for name in """botnet26t_256 bat_resnext26ts cspresnet50 cspdarknet53 convnext_atto convnext_femto convnextv2_atto convmixer_768_32
       darknet53 densenet121 dla34 dla46_c dm_nfnet_f0 dpn48b dpn68 eca_nfnet_l0 eca_resnext26ts edgenext_xx_small efficientnet_lite0
       efficientnetv2_rw_t ese_vovnet19b_dw fastvit_t8 fbnetc_100 gcresnext26ts gernet_s ghostnet_050 ghostnetv2_100 halonet26t
       hardcorenas_a haloregnetz_b hrnet_w18_small inception_next_atto lambda_resnet26t lcnet_050 legacy_senet154 legacy_xception mambaout_femto
       mixnet_s mnasnet_small mobilenetv2_035 mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 mobilevit_xxs mobilevitv2_050
       nf_resnet26 pnasnet5large regnetx_002 regnety_002 regnetz_005 repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_14w_8s
       resnest14d resnet10t resnet26t resnetv2_50 rexnet_100 rexnetr_100 sebotnet33ts_256 selecsls42 semnasnet_050 seresnext26ts
       skresnet18 spnasnet_100 starnet_s1 tf_efficientnetv2_b0 tinynet_e tresnet_m vgg11 vovnet39a xcit_nano_12_p16_224 visformer_tiny
       efficientformer_l1 efficientformerv2_s0 efficientvit_b0 efficientvit_m0 swiftformer_xs shvit_s1 csatv2""".split()},
    **{name: 224 for name in """beit_base_patch16_224 cait_xxs24_224 coat_tiny coatnet_nano_rw_224 convit_tiny crossvit_tiny_240 davit_tiny
       deit_tiny_patch16_224 deit3_small_patch16_224 eva02_tiny_patch14_224 flexivit_small focalnet_tiny_srf gcvit_xxtiny
       gmixer_12_224 hiera_tiny_224 levit_128s maxvit_rmlp_pico_rw_256 mixer_s32_224 mvitv2_tiny nest_tiny nextvit_small pit_ti_224
       poolformer_s12 pvt_v2_b0 resmlp_12_224 sequencer2d_s swin_tiny_patch4_window7_224 swinv2_cr_tiny_ns_224 tiny_vit_5m_224 tnt_s_patch16_224
       tnt_s_legacy_patch16_224 twins_svt_small vit_tiny_patch16_224 vit_relpos_small_patch16_224 vitamin_small_224 volo_d1_224 caformer_s18 rdnet_tiny""".split()},
}

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 60,
         "max_position_embeddings": 64, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OLDER = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 64}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
BOTH_SIDES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
              "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 1}
HIERARCHY = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"))  # lists of its own there
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
VISION = {"image_size": 32, "patch_size": 8, "num_channels": 3}

# Name of the config without "Config", settings, and how its model is called (AutoModelFor...).
TRANSFORMERS = {
    **{name: ({}, "CausalLM") for name in """Llama Mistral Qwen2 Qwen3 Gemma Gemma2 Phi Phi3 StableLm Starcoder2 Olmo Olmo2 Cohere GPTNeoX Glm Glm4
       Granite Helium Nemotron Persimmon SmolLM3 OPT Bloom Falcon CodeGen GPTJ GPT2 GPTBigCode BioGpt XGLM Mpt Exaone4 Ernie4_5
       SeedOss Arcee Apertus Lfm2 RecurrentGemma Mamba Mamba2 Rwkv""".split()},
    **{name: (EXPERTS, "CausalLM") for name in "Mixtral Qwen2Moe Qwen3Moe Olmoe Phimoe GraniteMoe".split()},
    **{name: ({}, "MaskedLM") for name in """Bert Roberta DistilBert Albert Electra DebertaV2 Deberta MobileBert RoFormer ModernBert Camembert
       XLMRoberta Ernie FNet MPNet ConvBert Esm Nystromformer LayoutLM Funnel Longformer BigBird SqueezeBert""".split()},
    **{name: (BOTH_SIDES, "Seq2SeqLM") for name in "Bart MBart Marian Pegasus BlenderbotSmall M2M100".split()},
    **{name: (T5, "Seq2SeqLM") for name in "T5 MT5 LongT5 UMT5".split()},
    **{name: (VISION, "ImageClassification") for name in """ViT DeiT Beit Dinov2 ViTMSN Swin Swinv2 ConvNext ConvNextV2 ResNet RegNet MobileNetV1
       MobileNetV2 MobileViT PoolFormer Segformer FocalNet Bit Levit PvtV2 EfficientNet Cvt Hiera""".split()},
}
MORE = {
    "GPT2": OLDER, "GPTJ": OLDER | {"rotary_dim": 4}, "CodeGen": OLDER | {"rotary_dim": 4, "n_head": 4}, "GPTBigCode": OLDER,
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32}, "Bloom": {"n_layer": 2, "n_head": 4}, "Mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "XGLM": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}, "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "Albert": {"embedding_size": 16}, "Electra": {"embedding_size": 16}, "Falcon": {"head_dim": None}, "SqueezeBert": {"embedding_size": 32},
    "Segformer": HIERARCHY, "Levit": HIERARCHY | dict.fromkeys(("image_size", "patch_size")) | {"architectures": ["LevitForImageClassification"]}, "PvtV2": HIERARCHY,
    "Hiera": HIERARCHY | dict.fromkeys(("image_size", "patch_size")), "DeiT": {"architectures": ["DeiTForImageClassification"]},
    "Swin": HIERARCHY | {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4},
    "Swinv2": HIERARCHY | {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4}, "Mamba": {"state_size": 4}, "FNet": {"tpu_short_seq_length": 8},
    "Mamba2": {"state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1}, "Longformer": {"attention_window": [4, 4]},
    "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, "ConvNextV2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, "RegNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "Ernie": {"task_type_vocab_size": 3}, "ModernBert": {"reference_compile": False},
    "MobileBert": {"embedding_size": 16, "intra_bottleneck_size": 16},
    "Funnel": {"num_hidden_layers": None, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
}


def picture_network(make, size):
    def network():
        return make(), (torch.randn(ROWS, 3, size, size),)
    return network


def torchvision_network(name, size):
    from torchvision import models

    def network():
        options = {"aux_logits": True, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
        options |= {"weights_backbone": None} if name in models.list_models(models.segmentation) + models.list_models(models.detection) else {}
        options |= {"image_size": size} if name.startswith("vit_") else {}
        model = models.get_model(name, weights=None, **options)
        if name in models.list_models(models.video):
            return model, (torch.randn(ROWS, 3, 4, size, size),)
        if name.startswith("raft"):
            return model, (torch.randn(ROWS, 3, size, size), torch.randn(ROWS, 3, size, size))
        return model, (torch.randn(ROWS, 3, size, size),)
    return network


def timm_network(name, size):
    import timm
    config = timm.get_pretrained_cfg(name)
    if config is not None:
        size = config.input_size[-1] if config.fixed_input_size else max(size, (config.min_input_size or (0,))[-1])
    return picture_network(lambda: timm.create_model(name, pretrained=False, num_classes=10), size)


class Answer(nn.Module):
    """The logits alone, from tokens, both sides' tokens, or pictures."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, first, second=None):
        options = {} if second is None else {"decoder_input_ids": second}
        if hasattr(self.model.config, "use_cache"):
            options["use_cache"] = False
        return self.model(first, **options).logits


def transformers_network(name, settings, task):
    import transformers

    def network():
        kind = getattr(transformers, name + "Config", None)
        if kind is None:
            raise LookupError(f"transformers {transformers.__version__} has no {name}Config")
        options = (VISION if task == "ImageClassification" else {}) | settings | MORE.get(name, {})
        defaults = kind()
        known = {key: value for key, value in (SMALL | options).items() if value is not None and (key in options or hasattr(defaults, key))}
        model = getattr(transformers, "AutoModelFor" + task).from_config(kind(**known))
        if task == "ImageClassification":
            size = getattr(model.config, "image_size", 32)
            return Answer(model), (torch.randn(ROWS, 3, size, size) if isinstance(size, int) else torch.randn(ROWS, 3, *size),)
        tokens = torch.randint(3, 60, (ROWS, 8))
        return Answer(model), (tokens, torch.randint(3, 60, (ROWS, 6))) if task == "Seq2SeqLM" else (tokens,)
    return network


def networks():
    found = {}
    try:
        import torchvision  # noqa: F401
        found |= {f"torchvision {name}": torchvision_network(name, size) for name, size in TORCHVISION.items()}
    except ImportError:
        pass
    try:
        import timm  # noqa: F401
        found |= {f"timm {name}": timm_network(name, size) for name, size in TIMM.items()}
    except ImportError:
        pass
    try:
        import transformers  # noqa: F401
        found |= {f"transformers {name}": transformers_network(name, *how) for name, how in TRANSFORMERS.items()}
    except ImportError:
        pass
    return found


class Graphs(nn.Module):
    """The file's two graphs in Python, with one set of weights."""

    def __init__(self, file):
        super().__init__()
        loaded = load_pt2(file).exported_programs
        self.of_train = loaded["model"].module()
        self.__dict__["of_eval"] = loaded["eval"].module()
        self.__dict__["ties"] = ties = {}
        for name, parameter in list(self.of_train.named_parameters(remove_duplicate=False)):
            tied = ties.setdefault((parameter.data_ptr(), parameter.shape), (parameter, []))
            tied[1].append(name)
            owner, _, leaf = name.rpartition(".")
            setattr(self.of_train.get_submodule(owner), leaf, tied[0])  # loaded as two that share a storage

    def forward(self, *inputs):
        if self.training:
            return self.of_train(*inputs)
        self.of_eval.load_state_dict(self.of_train.state_dict(), strict=False)
        return self.of_eval(*inputs)

    def train(self, mode=True):  # an exported graph refuses to be asked
        self.training = mode
        return self


def try_one(make, program):
    """What came of it, and words."""
    torch.manual_seed(0)
    try:
        model, inputs = make()
        model.train()
        model(*inputs)
    except Exception as error:
        return "not made", f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"
    for module in model.modules():  # Python's dropout of layers, which a graph cannot hold
        if hasattr(module, "layerdrop"):
            module.layerdrop = 0.0
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.pt2")
        partner = Partner(program, folder, inputs)
        try:
            notes = demi_export.export(model, inputs, file)
        except demi_export.ExportError as error:
            return "refused by the script", str(error)
        except Exception as error:
            return "WRONG: the script falls over", f"{type(error).__name__}: {str(error).strip()[:300]}"
        seen, problem = partner.run(file, STEPS, "fp32")
        if problem:
            return "WRONG: refused by C++", problem
        if all("bit for bit" in note for note in notes if note.startswith(("train: out", "eval: out"))):
            return outcome(seen, train(model, inputs, STEPS), notes, "the same bits")
        del model
        graphs = Graphs(file)
        expected = {name.replace(".of_train.", ".", 1): x for name, x in train(graphs, inputs, STEPS).items()}
        for _, names in graphs.ties.values():  # of a tied weight's names C++ has one
            for name in names[1:]:
                if f"grad.{name}" in seen and f"grad.{names[0]}" in expected:
                    expected[f"grad.{name}"] = expected.pop(f"grad.{names[0]}")
        return outcome(seen, expected, notes, "the bits of the graph in Python")


def outcome(seen, expected, notes, same):
    """Number by number, NaN included: random weights may diverge."""
    missing = [name for name in expected if name not in seen]
    if missing:
        return "WRONG: other bits", f"{missing[0]} is missing"
    apart = [name for name, value in expected.items() if not (seen[name].dtype == value.dtype and torch.equal(seen[name].nan_to_num(7.0, 8.0, 9.0),
                                                                                                      value.nan_to_num(7.0, 8.0, 9.0)))]
    if apart:
        a, b = seen[apart[0]].double(), expected[apart[0]].double()
        return "WRONG: other bits", f"{len(apart)} of {len(expected)}, first {apart[0]} by {(a - b).abs().max().item():.2g}"
    finite = all(value.isfinite().all() for value in expected.values())
    words = [note for note in notes if "bit for bit" not in note]
    return same, "; ".join(([] if finite else ["not all finite"]) + words)


def main():
    program, *chosen = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the partner
    is_table, is_list = "--table" in chosen, "--list" in chosen
    beginnings = tuple(name for name in chosen if not name.startswith("--"))
    all_networks = {name: make for name, make in networks().items() if not beginnings or name.startswith(beginnings)}
    if is_list:
        print("\n".join(all_networks))
        return
    version = subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip()
    if torch.__version__.split("+")[0] != version:
        sys.exit(f"PyTorch {torch.__version__} and LibTorch {version} may round differently")
    if is_table:
        print("| network | what came of it | words |\n|---|---|---|")
    counts = {}
    for name, make in all_networks.items():
        begin = time.monotonic()
        kind, words = try_one(make, program)
        counts[kind] = counts.get(kind, 0) + 1
        words = " ".join(words.split())
        print(f"| {name} | {kind} | {words} |" if is_table else f"{name}: {kind} ({time.monotonic() - begin:.0f} s) {words}", flush=True)
        gc.collect()
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    sys.exit(any(kind.startswith("WRONG") for kind in counts))


if __name__ == "__main__":
    main()
