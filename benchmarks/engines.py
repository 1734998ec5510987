"""The engines that benchmarks/peers.py compares. Run as a program it is one of them, at work.

An engine is a function of (folder, threads, gguf) that loads the weights and returns
run(prompts, new) -> the seconds of each of `new` tokens, the prefill in the first, and the tokens
of the first prompt. `prompts` is a list of lists of ids, all of one length.
"""

import importlib.util
import json
import random
import sys
import time
from pathlib import Path

PACKAGES = {  # engine -> the packages that it needs besides kvlib's own
    "kvlib": [],
    "kvlib packed": [],
    "kvlib int8": [],
    "transformers loop": [],
    "transformers static loop": [],
    "transformers generate": [],
    "CTranslate2 float32": ["ctranslate2"],
    "CTranslate2 int8": ["ctranslate2"],
    "onnxruntime float32": ["onnxruntime", "onnx"],
    "llama.cpp F32": ["llama_cpp_python"],
}
MODULES = {"llama_cpp_python": "llama_cpp"}
VOCABULARY = 50257


def missing(name: str, gguf: str) -> str | None:
    """Why the engine `name` cannot run here, or None."""
    if name not in PACKAGES:
        return f"no such engine; there are {', '.join(PACKAGES)}"
    for package in PACKAGES[name]:
        if importlib.util.find_spec(MODULES.get(package, package)) is None:
            return f"{package} is not installed"
    return "no --gguf file was given" if name.startswith("llama.cpp") and not gguf else None


def gaps(moments: list[float]) -> list[float]:
    """Seconds from each moment to the next."""
    return [after - before for before, after in zip(moments, moments[1:], strict=False)]


def loop(decoder):
    """run() of a kvlib Decoder, in its bare loop."""
    import torch

    from kvlib import timing

    def run(prompts, new):
        seconds, made, _ = timing.generation(decoder, torch.tensor(prompts), new, "cpu")
        return seconds, made[0].tolist()

    return run


def kvlib_as(form):
    def engine(folder, threads, gguf):
        from kvlib import decoders, load

        return loop(decoders.from_kvlib(load(folder), "static", form=form))

    return engine


def transformers_model(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def transformers_loop(folder, threads, gguf):
    from kvlib import decoders

    return loop(decoders.from_hf(transformers_model(folder), "dynamic"))


def transformers_static(folder, threads, gguf):
    from kvlib import decoders

    return loop(decoders.from_hf(transformers_model(folder), "static"))


def transformers_generate(folder, threads, gguf):
    import torch

    model = transformers_model(folder)
    moments: list[float] = []

    class Stopwatch(torch.nn.Module):  # asked after every token, for a batch too
        def __call__(self, tokens, scores, **_):
            moments.append(time.perf_counter())
            return torch.zeros(tokens.shape[0], dtype=torch.bool)

    def run(prompts, new):
        tokens = torch.tensor(prompts)
        moments[:] = [time.perf_counter()]
        how = dict(max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
        made = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            stopping_criteria=[Stopwatch()],
            **how,
        )
        return gaps(moments), made[0, tokens.shape[1] :].tolist()

    return run


def ctranslate2_as(compute_type):
    def engine(folder, threads, gguf):
        import ctranslate2

        converted = Path(folder) / f"ctranslate2-{compute_type}"
        if not converted.exists():
            converter = ctranslate2.converters.TransformersConverter(str(folder))
            converter.convert(str(converted), quantization=compute_type)
        how = dict(intra_threads=threads, inter_threads=1, compute_type=compute_type)
        generator = ctranslate2.Generator(str(converted), device="cpu", **how)
        names = json.loads((converted / "vocabulary.json").read_text())  # it takes texts, not ids

        def run(prompts, new):
            moments = [time.perf_counter()]

            def note(result):
                if result.batch_id == 0:
                    moments.append(time.perf_counter())
                return False

            results = generator.generate_batch(
                [[names[token] for token in prompt] for prompt in prompts],
                max_length=new,
                min_length=new,
                sampling_topk=1,
                include_prompt_in_result=False,
                callback=note,
            )
            return gaps(moments), results[0].sequences_ids[0]

        return run

    return engine


def onnxruntime_float32(folder, threads, gguf):
    import numpy as np
    import onnxruntime
    from onnx_gpt2 import export

    path = Path(folder) / "onnx" / "model.onnx"
    shape = export(folder, path)  # layers, heads, head dim
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    value = onnxruntime.OrtValue.ortvalue_from_numpy

    def run(prompts, new):
        tokens, batch, moments, made = np.array(prompts), len(prompts), [time.perf_counter()], []
        empty = np.zeros((batch, shape[1], 0, shape[2]), dtype=np.float32)
        past = {f"past_{i}": value(empty) for i in range(2 * shape[0])}
        for _ in range(new):
            logits, *rows = session.run_with_ort_values(names, {"tokens": value(tokens), **past})
            past = {f"past_{i}": row for i, row in enumerate(rows)}
            tokens = logits.numpy().argmax(-1)[:, None]
            made.append(int(tokens[0, 0]))
            moments.append(time.perf_counter())
        return gaps(moments), made

    return run


def llama_cpp(folder, threads, gguf):
    import llama_cpp
    import numpy as np

    how = dict(n_threads=threads, n_threads_batch=threads)  # the second, of a prefill: else all
    how |= dict(type_k=0, type_v=0)  # 0 is ggml's float32: else the cache is float16
    model = llama_cpp.Llama(gguf, n_ctx=1024, n_batch=512, verbose=False, **how)

    def run(prompts, new):
        if len(prompts) > 1:
            raise NotImplementedError("its Python package decodes one sequence at a time")
        tokens, moments, made = prompts[0], [time.perf_counter()], []
        model.reset()
        for _ in range(new):
            model.eval(tokens)  # model.scores stays empty, unless logits of all tokens are made
            last = llama_cpp.llama_get_logits_ith(model.ctx, -1)
            tokens = [int(np.ctypeslib.as_array(last, shape=(model.n_vocab(),)).argmax())]
            made += tokens
            moments.append(time.perf_counter())
        return gaps(moments), made

    return run


ENGINES = {
    "kvlib": kvlib_as("float32"),
    "kvlib packed": kvlib_as("packed"),
    "kvlib int8": kvlib_as("int8"),
    "transformers loop": transformers_loop,
    "transformers static loop": transformers_static,
    "transformers generate": transformers_generate,
    "CTranslate2 float32": ctranslate2_as("float32"),
    "CTranslate2 int8": ctranslate2_as("int8"),
    "onnxruntime float32": onnxruntime_float32,
    "llama.cpp F32": llama_cpp,
}


def work(run, batch: int, length: int, new: int) -> dict:
    """What `run` did with `batch` seeded prompts: "seconds" and "tokens", or the "error" raised."""
    from kvlib.stopwatch import undisturbed

    draw = random.Random(0)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(length)] for _ in range(batch)]
    try:
        with undisturbed("cpu"):
            seconds, made = run(prompts, new)
        if len(seconds) != new or len(made) != new:
            raise RuntimeError(f"{len(made)} tokens, {len(seconds)} times, {new} asked for")
    except Exception as error:  # whatever an engine raises, it may still do the next work
        said = str(error).strip().splitlines() or [""]
        return dict(error=f"{type(error).__name__}: {said[0]}")
    return dict(seconds=seconds, tokens=made)


def main() -> int:
    """Load one engine, then answer each line of standard input, a work, as `work` does."""
    import torch

    name, folder, threads, gguf = sys.argv[1:]
    torch.set_num_threads(int(threads))
    run = ENGINES[name](folder, int(threads), gguf)
    print("answer true", flush=True)
    for line in sys.stdin:
        print("answer " + json.dumps(work(run, *json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
